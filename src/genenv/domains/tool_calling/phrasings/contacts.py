"""How people ask for the tools of their contacts."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

CONTACTS: dict[str, ToolPhrases] = {
    "add_contact": ToolPhrases(
        slots={"name": "person", "phone": "phone"},
        training=Phrases(
            explicit=(
                "Save {name} in my contacts with the number {phone}",
                "Add a contact: {name}, {phone}.",
                "Can you add {name} to my contacts? The number is {phone}.",
                "Store {phone} in my contacts as the number of {name}",
            ),
            indirect=(
                "I just met {name} and got the number {phone}, which I don't want to lose.",
                "{name} can be reached at {phone}. My contacts don't know that yet.",
            ),
            missing={
                "phone": ("Save {name} in my contacts", "Add {name} as a new contact"),
                "name": ("Save the number {phone} in my contacts",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Make a new contact for {name}, phone number {phone}.",
                "Put {name} into my address book under {phone}",
                "Please remember {phone} as the phone number of {name} in my address book.",
            ),
            indirect=(
                "{name} gave me a card that says {phone}; it belongs in my address book.",
                "My address book is missing {name}, whose phone number is {phone}.",
            ),
            missing={"phone": ("Put {name} into my address book",)},
        ),
    ),
    "find_contact": ToolPhrases(
        slots={"name": "person"},
        training=Phrases(
            explicit=(
                "Look up {name} in my contacts",
                "Find the contact details of {name}",
                "What is the phone number of {name}?",
                "Show me the contact entry for {name}",
            ),
            indirect=(
                "I need to get hold of {name} but I don't have the number at hand.",
                "I can't remember how to reach {name}.",
            ),
            missing={
                "name": (
                    "Look up a phone number in my contacts",
                    "Find the contact details of a friend of mine",
                )
            },
        ),
        held_out=Phrases(
            explicit=(
                "Search my address book for {name}",
                "Get me the number of {name}",
                "Do I have an entry for {name} in my address book?",
            ),
            indirect=(
                "The number of {name} must be somewhere in my address book.",
                "I would ring {name} right away if only I knew the number.",
            ),
            missing={"name": ("Search my address book for someone",)},
        ),
    ),
    "send_message": ToolPhrases(
        slots={"to": "person", "text": "message"},
        training=Phrases(
            explicit=(
                'Text {to}: "{text}"',
                'Send {to} a message saying "{text}"',
                'Message {to} with the words "{text}"',
                'Can you send "{text}" to {to} as a text message?',
            ),
            indirect=(
                '{to} should get this from me on the phone: "{text}".',
                'I want {to} to read this in a text message: "{text}".',
            ),
            missing={
                "text": ("Send {to} a text message", "Text {to} for me"),
                "to": ('Send a text message that says "{text}"',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Drop {to} a text with "{text}"',
                'Write {to} the following text message: "{text}"',
                'Would you text "{text}" to {to}?',
            ),
            indirect=(
                '{to} is waiting for a text message from me. It should read "{text}".',
                'A quick text ought to let {to} know: "{text}".',
            ),
            missing={"text": ("Drop {to} a text",)},
        ),
    ),
    "block_contact": ToolPhrases(
        slots={"name": "person"},
        training=Phrases(
            explicit=(
                "Block {name}",
                "Put {name} on my list of blocked contacts",
                "Please block the contact {name}.",
                "Stop {name} from contacting me",
            ),
            indirect=(
                "I never want to get another call or message from {name}.",
                "{name} keeps pestering me and I want it to stop for good.",
            ),
            missing={"name": ("Block a contact for me", "Someone keeps pestering me. Please block them.")},
        ),
        held_out=Phrases(
            explicit=(
                "Bar {name} from calling or texting me",
                "Add {name} to the blocked people in my address book",
                "Could you block {name} for me?",
            ),
            indirect=(
                "I have had enough of {name}; no call or text should come through any longer.",
                "{name} must not be able to reach me any more.",
            ),
            missing={"name": ("Could you block that person for me?",)},
        ),
    ),
    "read_messages": ToolPhrases(
        slots={"sender": "person"},
        training=Phrases(
            explicit=(
                "Show me the text messages from {sender}",
                "Read me what {sender} texted me",
                "Open my messages from {sender}",
                "Which messages has {sender} sent me?",
            ),
            indirect=(
                "{sender} has been texting me, and I have not looked at any of it.",
                "I wonder what {sender} wrote to me on the phone.",
            ),
            missing={"sender": ("Read me the messages from that person", "Show me what my friend texted me")},
        ),
        held_out=Phrases(
            explicit=(
                "Pull up the texts {sender} sent me",
                "Read the messages I got from {sender} to me",
                "Has {sender} texted me? Show me the messages.",
            ),
            indirect=(
                "My phone buzzed and it was {sender}; I want to know what the texts say.",
                "I missed everything {sender} texted me.",
            ),
            missing={"sender": ("Pull up the texts from somebody",)},
        ),
    ),
}
