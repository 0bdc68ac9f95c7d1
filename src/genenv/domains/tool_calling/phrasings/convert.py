"""How people ask for conversions and small sums."""

from genenv.domains.tool_calling.phrasings.template import Phrases, ToolPhrases

CONVERT: dict[str, ToolPhrases] = {
    "convert_units": ToolPhrases(
        slots={"value from_unit to_unit": "measure"},
        training=Phrases(
            explicit=(
                "Convert {value} {from_unit} to {to_unit}",
                "Convert {value} {from_unit:code} to {to_unit:code}",
                "How much is {value} {from_unit} in {to_unit}?",
                "What are {value} {from_unit} in {to_unit}?",
            ),
            relative=(
                "Convert {value:rel} {from_unit} to {to_unit}",
                "What are {value:rel} {from_unit} in {to_unit}?",
            ),
            indirect=(
                "It says {value} {from_unit} here, but I only think in {to_unit}.",
                "I can't picture {value} {from_unit}. I am used to {to_unit}.",
            ),
            missing={
                "value": ("Convert my measurement from {from_unit} to {to_unit}",),
                "to_unit": ("Convert {value} {from_unit} to another unit",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Turn {value} {from_unit} into {to_unit}",
                "Give me {value} {from_unit} expressed in {to_unit}",
                "How many {to_unit} are {value} {from_unit}?",
            ),
            relative=(
                "Turn {value:rel} {from_unit} into {to_unit}",
                "How many {to_unit} are {value:rel} {from_unit}?",
            ),
            indirect=(
                (
                    "The label talks of {value} {from_unit}, which means nothing "
                    "to somebody who grew up with {to_unit}."
                ),
                "My instructions call for {value} {from_unit}, yet all I can measure is {to_unit}.",
            ),
            missing={"to_unit": ("Turn {value} {from_unit} into a different unit",)},
        ),
    ),
    "convert_currency": ToolPhrases(
        slots={"source target": "currencies", "amount": "sum"},
        training=Phrases(
            explicit=(
                "Convert {amount} {source} to {target}",
                "Convert {amount} {source:code} to {target:code}",
                "How much is {amount} {source} in {target}?",
                "What are {amount} {source:code} worth in {target:code}?",
            ),
            relative=(
                "Convert {amount:rel} {source} to {target}",
                "How much are {amount:rel} {source} in {target}?",
            ),
            indirect=(
                "I have {amount} {source} left and wonder what that is in {target}.",
                "The price tag says {amount} {source}, but I only know what {target} are worth.",
            ),
            missing={
                "amount": ("Convert some {source} to {target}",),
                "target": ("Convert {amount} {source} to the local currency",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Work out what {amount} {source} make in {target}",
                "Express {amount} {source:code} in {target:code}",
                "How many {target} would I get for {amount} {source}?",
            ),
            relative=(
                "Work out what {amount:rel} {source} make in {target}",
                "How many {target} would I get for {amount:rel} {source}?",
            ),
            indirect=(
                (
                    "They want {amount} {source} from me, and I have no feeling "
                    "for how much that is in {target}."
                ),
                "Having been paid {amount} {source}, I am dying to know the sum in {target}.",
            ),
            missing={"amount": ("Work out what my {source} make in {target}",)},
        ),
    ),
    "days_between": ToolPhrases(
        slots={"start end": "span"},
        training=Phrases(
            explicit=(
                "How many days are there from {start} to {end}?",
                "Count the days from {start} to {end}",
                "Work out how many days lie between {start} and {end}",
                "Tell me the number of days from {start} until {end}",
            ),
            relative=(
                "Count the days from {start:day} to {end}",
                "How many days are there from {start:day} until {end}?",
            ),
            indirect=(
                "I leave on {start} and come back on {end}. I wonder how many days that makes.",
                "The project runs from {start} to {end}, and I need its length in days.",
            ),
            missing={
                "end": ("Count the days from {start} to the other date",),
                "start": ("Tell me the number of days until {end}, counted from the start of the project",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Calculate the number of days separating {start} and {end}, starting with {start}",
                "How long is it in days from {start} until {end}?",
                "Figure out how many days pass between {start} and {end}",
            ),
            relative=(
                "Calculate the number of days from {start:day} until {end}",
                "How long is it in days from {start:day} to {end}?",
            ),
            indirect=(
                "My lease starts on {start} and ends on {end}; the length in days must go on a form.",
                "From {start} on I am counting the days until {end}, but I don't know how many there are.",
            ),
            missing={"end": ("Figure out how many days pass from {start} until the deadline",)},
        ),
    ),
    "add_days": ToolPhrases(
        slots={"date": "date", "days": "days"},
        training=Phrases(
            explicit=(
                "What date is {days} days after {date}?",
                "Add {days} days to {date}",
                "Which date do I get if I add {days} days to {date}?",
                "Tell me the date {days} days after {date}",
            ),
            relative=(
                "Add {days:rel} to {date}",
                "Tell me the date that comes {days:rel} after {date}",
            ),
            indirect=(
                "I have {days} days from {date} to pay and need the exact date of the deadline.",
                "My trial began on {date} and lasts {days} days. I wonder on which date it ends.",
            ),
            missing={
                "days": ("Add some days to {date}",),
                "date": ("Tell me the date after adding {days} days",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Count {days} days forward from {date}",
                "Give me the date you reach {days} days past {date}",
                "If {days} days go by after {date}, what is the date?",
            ),
            relative=(
                "Count {days:rel} forward from {date}",
                "Give me the date you reach {days:rel} past {date}",
            ),
            indirect=(
                "The guarantee lasts {days} days and started on {date}; its final date is what I am after.",
                (
                    "The library wants the book back {days} days after {date}, "
                    "and I can't do that sum in my head."
                ),
            ),
            missing={"days": ("Count forward from {date} by the length of my vacation",)},
        ),
    ),
    "split_bill": ToolPhrases(
        slots={"total": "amount", "people": "people"},
        training=Phrases(
            explicit=(
                "Split a bill of {total} dollars between {people} people",
                "Divide {total} dollars among {people} people",
                "How much does each of {people} people pay of a ${total} bill?",
                "Work out the share per person for a bill of {total} dollars and {people} people",
            ),
            relative=(
                "Split a bill of {total} dollars between {people:rel} people",
                "Divide a bill of {total:rel} dollars among {people:rel} people",
            ),
            indirect=(
                (
                    "Dinner came to {total} dollars and there were {people} of "
                    "us. I wonder what each of us owes."
                ),
                "We are {people} people with a bill of {total} dollars, and everybody should pay the same.",
            ),
            missing={
                "people": ("Split a bill of {total} dollars between us",),
                "total": ("Split the bill between {people} people",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Share out {total} dollars evenly among {people} friends",
                "If {people} of us chip in equally for a bill of {total} dollars, what does each owe?",
                "Calculate equal parts of a {total} dollar check for {people} guests",
            ),
            relative=(
                "Share out a bill of {total} dollars evenly among {people:rel} friends",
                "Calculate equal parts of a {total} dollar check for {people:rel} guests",
            ),
            indirect=(
                (
                    "The restaurant charged our table of {people} a total of "
                    "{total} dollars; fair is fair, so all pay alike."
                ),
                "The gift cost {total} dollars, and {people} of us promised to chip in equally.",
            ),
            missing={"people": ("Share out {total} dollars evenly among my friends",)},
        ),
    ),
    "percent_of": ToolPhrases(
        slots={"percent": "percent", "value": "number"},
        training=Phrases(
            explicit=(
                "What is {percent} percent of {value}?",
                "Calculate {percent}% of {value}",
                "Work out {percent} percent of {value}",
                "How much is {percent}% of {value}?",
            ),
            relative=(
                "Calculate {percent:rel} percent of {value}",
                "How much is {percent:rel} percent of {value}?",
            ),
            indirect=(
                "They charge a fee of {percent} percent on {value} dollars, and I wonder how much that is.",
                "Of the {value} guests, {percent} percent are children. I would like that as a number.",
            ),
            missing={
                "percent": ("Calculate the percentage of {value} for me",),
                "value": ("Work out {percent} percent of the price",),
            },
        ),
        held_out=Phrases(
            explicit=(
                "Take {percent} percent of {value} and tell me the result",
                "Figure out how much {percent} percent of {value} comes to",
                "Compute {percent}% of {value}",
            ),
            relative=(
                "Figure out how much {percent:rel} percent of {value} comes to",
                "Compute {percent:rel} percent of {value}",
            ),
            indirect=(
                (
                    "My raise is {percent} percent on top of {value} dollars; the "
                    "extra money in dollars is what interests me."
                ),
                "A tip of {percent} percent on a check of {value} dollars is customary, but how much is it?",
            ),
            missing={"value": ("Compute {percent} percent of my salary",)},
        ),
    ),
}
