"""How people ask for the bank's tools."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

BANK: dict[str, ToolPhrases] = {
    "get_balance": ToolPhrases(
        slots={"account": "account"},
        training=Phrases(
            explicit=(
                "What is the balance of my {account} account?",
                "Check the balance of my {account} account",
                "How much money is in my {account} account?",
                "Tell me my {account} balance",
            ),
            indirect=(
                "I wonder how much I have left in {account}.",
                "Before I buy anything I should know what my {account} account still holds.",
            ),
            missing={"account": ("Check the balance of my account", "How much money is in that account?")},
        ),
        held_out=Phrases(
            explicit=(
                "Show me what my {account} account holds",
                "Look up the amount I have in {account}",
                "How full is my {account} account?",
            ),
            indirect=(
                "I have no idea how my {account} account is doing.",
                "I lost track of the money in my {account} account.",
            ),
            missing={"account": ("Look up the amount I have in the bank",)},
        ),
    ),
    "transfer": ToolPhrases(
        slots={"source target": "accounts", "amount": "amount"},
        training=Phrases(
            explicit=(
                "Transfer {amount} dollars from {source} to {target}",
                "Move ${amount} from my {source} account to my {target} account",
                "Can you move {amount} dollars out of {source} into {target}?",
                "Shift {amount} dollars from {source} over to {target}",
            ),
            relative=(
                "Transfer {amount:rel} dollars from {source} to {target}",
                "Move {amount:rel} bucks from my {source} account to my {target} account",
            ),
            indirect=(
                "My {target} account could use {amount} dollars, and there is enough in {source}.",
                "I have {amount} dollars too much in {source}. They belong in {target}.",
            ),
            missing={
                "amount": (
                    "Transfer some money from {source} to {target}",
                    "Move money from my {source} account to {target}",
                ),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Send {amount} dollars from my {source} account over to {target}",
                "Take ${amount} out of {source} and put it into {target}",
                "Please rebook {amount} dollars from {source} to {target}.",
            ),
            relative=(
                "Take {amount:rel} dollars out of {source} and put them into {target}",
                "Please rebook {amount:rel} dollars from {source} to {target}.",
            ),
            indirect=(
                "It would be good to see {amount} dollars from {source} turn up in {target}.",
                "The {target} account is {amount} dollars short; {source} can cover that.",
            ),
            missing={"amount": ("Take some of the money in {source} and put it into {target}",)},
        ),
    ),
    "pay_bill": ToolPhrases(
        slots={"payee": "payee", "amount": "amount"},
        training=Phrases(
            explicit=(
                "Pay {amount} dollars to {payee}",
                "Pay the {payee} bill of ${amount}",
                "Please pay {payee} the {amount} dollars on their bill.",
                "Settle the bill from {payee}, which comes to {amount} dollars",
            ),
            relative=(
                "Pay {amount:rel} dollars to {payee}",
                "Settle the {payee} bill of {amount:rel} dollars",
            ),
            indirect=(
                "{payee} sent me a bill for {amount} dollars that is still open.",
                "I owe {payee} {amount} dollars for their bill and don't want to be late.",
            ),
            missing={
                "amount": ("Pay the bill from {payee}", "Settle my bill with {payee}"),
                "payee": ("Pay a bill of {amount} dollars",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Clear the {payee} invoice over {amount} dollars",
                "Send {payee} the ${amount} I was billed",
                "Could you pay {payee} their invoice of {amount} dollars?",
            ),
            relative=(
                "Clear the {payee} invoice over {amount:rel} dollars",
                "Could you pay {payee} the {amount:rel} dollars I was billed?",
            ),
            indirect=(
                "An invoice from {payee} over {amount} dollars is lying on my desk, unpaid.",
                "{payee} has sent me a reminder because I have not paid their {amount} dollars.",
            ),
            missing={"amount": ("Clear the invoice from {payee}",)},
        ),
    ),
    "list_transactions": ToolPhrases(
        slots={"account": "account", "limit": "limit"},
        training=Phrases(
            explicit=(
                "Show me the last {limit} transactions of my {account} account",
                "List the latest {limit} transactions in {account}",
                "What were the last {limit} payments in my {account} account?",
                "Get the {limit} most recent transactions from {account}",
            ),
            relative=(
                "Show me the last {limit:rel} transactions of my {account} account",
                "List the latest {limit:rel} transactions in {account}",
            ),
            indirect=(
                "Something looks odd in {account}. Seeing the last {limit} transactions would help.",
                (
                    "I'd like to know where the money in {account} went; the "
                    "last {limit} transactions should tell."
                ),
            ),
            missing={
                "limit": ("Show me some of the latest transactions in {account}",),
                "account": (
                    "Show me the last {limit} transactions",
                    "List the latest {limit} transactions of my account",
                ),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Pull the {limit} newest transactions on my {account} account",
                "Give me the most recent {limit} bookings in {account}",
                "Which {limit} transactions came last in {account}?",
            ),
            relative=(
                "Pull the {limit:rel} newest transactions on my {account} account",
                "Give me the most recent {limit:rel} bookings in {account}",
            ),
            indirect=(
                "I suspect a double booking among the {limit} newest transactions in {account}.",
                "For my records I am missing the {limit} most recent entries of the {account} account.",
            ),
            missing={"account": ("Pull the {limit} newest transactions on my account",)},
        ),
    ),
    "set_spending_limit": ToolPhrases(
        slots={"category": "category", "amount": "amount"},
        training=Phrases(
            explicit=(
                "Set a spending limit of {amount} dollars for {category}",
                "Limit my spending on {category} to ${amount} a month",
                "Cap {category} at {amount} dollars a month",
                "Can you set my monthly limit for {category} to {amount} dollars?",
            ),
            relative=(
                "Set a spending limit of {amount:rel} dollars for {category}",
                "Cap {category} at {amount:rel} dollars a month",
            ),
            indirect=(
                "I spend too much on {category}. More than {amount} dollars a month should not be possible.",
                "I don't want {category} to cost me more than {amount} dollars a month.",
            ),
            missing={
                "amount": ("Set a spending limit for {category}", "Limit my monthly spending on {category}"),
                "category": ("Set a monthly spending limit of {amount} dollars",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Allow me {amount} dollars for {category} each month, and no more",
                "Put a monthly ceiling of ${amount} on {category}",
                "Restrict my spending on {category} to {amount} dollars per month",
            ),
            relative=(
                "Put a monthly ceiling of {amount:rel} dollars on {category}",
                "Restrict my spending on {category} to {amount:rel} dollars per month",
            ),
            indirect=(
                (
                    "My budget has {amount} dollars a month for {category}, and "
                    "I would like the bank to enforce that."
                ),
                "The bank should stop me once {category} has eaten {amount} dollars in a month.",
            ),
            missing={"amount": ("Put a monthly ceiling on {category}",)},
        ),
    ),
}
