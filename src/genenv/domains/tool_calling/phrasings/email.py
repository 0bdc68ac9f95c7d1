"""How people ask for the tools of their mailbox."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

EMAIL: dict[str, ToolPhrases] = {
    "send_email": ToolPhrases(
        slots={"to": "mail_address", "subject body": "mail"},
        training=Phrases(
            explicit=(
                'Email {to} with the subject "{subject}" and the text "{body}"',
                'Send an email to {to}, subject "{subject}", saying "{body}"',
                'Write to {to}. The subject is "{subject}" and the body is "{body}".',
                'Can you email "{body}" to {to} under the subject "{subject}"?',
            ),
            indirect=(
                '{to} still has to hear from me by email about "{subject}": "{body}".',
                'I owe {to} an email. It should be titled "{subject}" and read "{body}".',
            ),
            missing={
                "to": ('Send an email about {subject} that says "{body}"',),
                "body": ('Email {to} with the subject "{subject}"',),
            },
        ),
        held_out=Phrases(
            explicit=(
                'Compose an email to {to} titled "{subject}" that says "{body}"',
                'Mail {to} the words "{body}" with "{subject}" as the subject',
                'Please send {to} an email. Subject: "{subject}". Text: "{body}".',
            ),
            indirect=(
                'An email titled "{subject}" should reach {to}, reading "{body}".',
                '{to} is waiting for my email "{subject}", which is simply "{body}".',
            ),
            missing={"body": ('Compose an email to {to} titled "{subject}"',)},
        ),
    ),
    "search_email": ToolPhrases(
        slots={"query": "mail_query"},
        training=Phrases(
            explicit=(
                'Search my email for "{query}"',
                'Find the email about "{query}"',
                'Look through my inbox for "{query}"',
                'Is there an email about "{query}" in my inbox?',
            ),
            indirect=(
                'Somebody emailed me about "{query}", but I can\'t find it.',
                'I need the email that mentions "{query}".',
            ),
            missing={"query": ("Search my email for me", "Find an old email of mine")},
        ),
        held_out=Phrases(
            explicit=(
                'Go through my mailbox and find "{query}"',
                'Check my mail for anything on "{query}"',
                'Which email in my mailbox mentions "{query}"?',
            ),
            indirect=(
                'I know the email on "{query}" is hiding somewhere in my mailbox.',
                'The message about "{query}" in my mailbox has slipped out of sight.',
            ),
            missing={"query": ("Go through my mailbox and find that message",)},
        ),
    ),
    "archive_email": ToolPhrases(
        slots={"email_id": "email_id"},
        training=Phrases(
            explicit=(
                "Archive email {email_id}",
                "Move the email with the id {email_id} to the archive",
                "Please archive message number {email_id} in my inbox.",
                "Put email number {email_id} into the archive",
            ),
            indirect=(
                "I am done with email {email_id}; it can leave my inbox, but I want to keep it.",
                "Email {email_id} is clogging up my inbox, but I may need it again.",
            ),
            missing={"email_id": ("Archive an email for me", "Please archive that email.")},
        ),
        held_out=Phrases(
            explicit=(
                "File email {email_id} away in the archive",
                "Send email number {email_id} to the archive",
                "Could you archive the mail with id {email_id}?",
            ),
            indirect=(
                "Email {email_id} has been dealt with and belongs in the archive.",
                "I have no more use for email {email_id} in the inbox, yet it should be kept.",
            ),
            missing={"email_id": ("Could you archive the mail I just read?",)},
        ),
    ),
    "flag_email": ToolPhrases(
        slots={"email_id": "email_id", "color": "color"},
        training=Phrases(
            explicit=(
                "Flag email {email_id} in {color}",
                "Mark email {email_id} with a {color} flag",
                "Please put a {color} flag on email number {email_id}.",
                "Give the email with id {email_id} a {color} flag",
            ),
            indirect=(
                "Email {email_id} should stand out in {color} among my mail.",
                "I mark such mails {color}, and email {email_id} has no mark yet.",
            ),
            missing={
                "email_id": ("Mark the email with a {color} flag", "Put a {color} flag on that email"),
                "color": ("Put a flag on email {email_id}",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Set a {color} flag on email {email_id}",
                "Use the {color} flag for the mail with number {email_id}",
                "Could you flag mail {email_id} {color}?",
            ),
            indirect=(
                "When I look at my mailbox, number {email_id} should catch my eye in {color}.",
                "Email {email_id} deserves a flag, and the right color for it is {color}.",
            ),
            missing={"email_id": ("Use the {color} flag for my latest mail",)},
        ),
    ),
}
