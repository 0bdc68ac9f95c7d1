"""Names, texts and numbers for tasks: one list for training, another for measuring, nothing in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Entry = str | tuple[str, ...]

CLOSED: Mapping[str, Sequence[Entry]] = {
    "room": ("kitchen", "bedroom", "bathroom", "living room", "office"),
    "door": ("front", "back", "garage"),
    "color": ("red", "yellow", "green"),
    "account": ("checking", "savings"),
    "accounts": (("checking", "savings"), ("savings", "checking")),
}
"""Choices that a tool's schema lists: both splits use them."""

TRAINING_LISTS: Mapping[str, Sequence[Entry]] = {
    "event": (
        "Design review", "Team lunch", "Book club", "Parent evening", "Tax appointment", "Swimming lesson",
        "Choir practice", "Flat viewing", "Sales call", "Eye test", "Garden party", "Staff meeting",
        "Job interview",
        "Chess night", "Photo shoot", "Haircut",
    ),
    "person": (
        "Nora Lind", "Omar Haddad", "Julia Brandt", "Ben Foster", "Clara Novak", "Victor Hughes", "Mina Sato",
        "Paul Jensen", "Rosa Marin", "Owen Clarke", "Hanna Vogel", "Diego Torres", "Ivy Chen", "Felix Moreau",
        "Tara Quinn", "Noah Becket", "Lena Fischer", "Amir Rahimi",
    ),
    "phone": (
        "555-0142", "555-0176", "555-0118", "555-0164", "555-0130", "555-0192", "555-0154", "555-0108",
        "555-0186", "555-0122",
    ),
    "message": (
        "I am on my way", "Dinner is ready", "Please call me back", "The train is late",
        "See you at the gate",
        "I left the keys with Rosa", "Thanks for your help", "Can you bring the tent?", "We got the tickets",
        "I found your scarf", "The meeting is over", "Please feed the cat",
    ),
    "mail_address": (
        "nora@post.net", "support@brightshop.com", "ben.foster@mail.com", "office@oakschool.org",
        "hanna@vogel.net",
        "billing@citypower.com", "clara@novak.org", "jobs@redbridge.com", "owen@clarke.net",
        "team@lakeside.org",
    ),
    "mail": (
        ("Lunch plans", "Shall we try the new noodle place?"),
        ("Broken heater", "The heater in my flat is cold again"),
        ("Thank you", "Thanks for the lovely evening"),
        ("Missing parcel", "My parcel has not arrived yet"),
        ("Draft contract", "Please send me the draft again"),
        ("Sick leave", "I have a fever and will stay at home"),
        ("Keys", "The spare keys are with the neighbor"),
        ("Sports day", "My son would like to take part"),
        ("Refund", "Please refund the damaged lamp"),
        ("Photos", "The photos turned out really well"),
    ),
    "mail_query": (
        "rent increase", "dentist reminder", "school trip", "boarding pass", "warranty", "job offer",
        "electricity bill", "concert tickets", "password reset", "wedding invitation",
    ),
    "new_file": (
        ("notes/ideas.txt", "paint the fence"),
        ("home/shopping.txt", "bread, eggs, olive oil"),
        ("work/agenda.md", "budget, hiring, holidays"),
        ("school/essay.txt", "The sea was calm that morning"),
        ("music/wishlist.txt", "cello sonatas"),
        ("garden/plants.txt", "basil, mint, thyme"),
        ("travel/route.txt", "north along the coast"),
        ("work/slogan.txt", "Fresh from the oven"),
        ("home/guests.txt", "Nora, Omar and the twins"),
        ("family/names.txt", "Emil, Ada, Johan"),
    ),
    "path": (
        "work/minutes.txt", "home/inventory.txt", "school/thesis.md", "docs/lease.txt", "music/lyrics.txt",
        "travel/visa.txt", "garden/diary.txt", "work/targets.md", "family/recipes.txt", "notes/quotes.txt",
        "docs/manual.txt", "home/meters.csv",
    ),
    "move": (
        ("inbox/scan.txt", "docs/scan.txt"),
        ("work/old_plan.md", "archive/old_plan.md"),
        ("notes/draft.txt", "notes/final.txt"),
        ("desktop/cv.txt", "jobs/cv.txt"),
        ("music/demo.txt", "music/album.txt"),
        ("home/list.txt", "home/groceries.txt"),
        ("school/lab.md", "school/physics/lab.md"),
        ("downloads/invoice.csv", "bills/invoice.csv"),
        ("temp/story.txt", "writing/story.txt"),
        ("travel/photos.txt", "family/photos.txt"),
    ),
    "folder": ("work", "school", "travel", "bills", "garden", "archive", "music/scores", "home/plans"),
    "product": (
        "tea candles", "coffee filters", "paper towels", "light bulbs", "rechargeable batteries",
        "wool socks",
        "tent pegs", "storage boxes", "picture frames", "water bottles", "sun hats", "flower pots",
        "bath towels", "phone cases",
    ),
    "street": (
        "24 Elm Street", "8 Station Road", "162 Park Avenue", "6 Rose Lane", "40 Bridge Street",
        "72 Hill Road",
        "18 Market Square", "2 Chapel Row",
    ),
    "payee": (
        "Aqua Water", "Hillside Dental", "Bright Energy", "Telenet", "Oak School", "Riverside Garage",
        "Swift Insurance", "Maple Rentals", "Lakeside Gym", "Urban Waste",
    ),
    "category": ("clothes", "dining out", "travel", "books", "coffee", "gifts", "taxis", "video games"),
    "city": (
        "Hamburg", "Porto", "Kyoto", "Boston", "Bergen", "Seville", "Montreal", "Brisbane", "Lyon", "Naples",
        "Graz", "Seattle", "Nairobi", "Austin",
    ),
    "flight_id": ("LH482", "BA206", "KL1024", "SK846", "AF1380", "IB3172", "TP554", "UA918", "AY1332",
    "LX640"),
    "booking_id": ("H2048", "F7716", "H3390", "F1284", "H9026", "F4452", "H5508", "F6830", "H8174", "F2962"),
    "label": (
        "Take the pills", "Gym", "Feed the fish", "School run", "Early shift", "Bake the bread",
        "Walk the dog",
        "Catch the bus", "Morning prayer", "Take out the trash",
    ),
    "note": (
        "Garden", "House rules", "Book list", "Birthdays", "Workout", "Paint colors", "Baby names",
        "Dream diary",
        "Trip to Norway", "Interview tips", "Party menu", "Spanish words",
    ),
    "note_text": (
        "The roses need pruning", "Ask for a discount", "The blue one looked best",
        "Start with easy stretches",
        "Aunt Vera likes marzipan", "Take the ferry, not the bridge", "Shoes off at the door",
        "The gate code has changed", "Bring enough water", "Practice every evening", "Keep the receipt",
    ),
    "note_query": (
        "tomato seeds", "gate code", "marzipan", "landlord", "vaccination", "bike lock", "knitting pattern",
        "insurance number", "sourdough", "ski rental",
    ),
    "todo": (
        "book the plumber", "return the drill", "order new glasses", "fix the bike", "clean the gutters",
        "sign the contract", "bake a cake", "back up the laptop", "wash the car", "call the landlord",
        "pick up the suit", "sort the photos",
    ),
    "song": (
        ("Silver Lake", "The Larks"), ("Midnight Train", "Ada Moon"), ("Honey and Salt", "Kite Parade"),
        ("Open Windows", "Marlow"), ("Red Balloon", "The Old Pines"), ("Stay a While", "June Avery"),
        ("Glass Mountain", "Northlight"), ("Falling Up", "Dora Finch"), ("Harbor Song", "The Tides"),
        ("Blue Bicycle", "Theo Grant"),
    ),
    "song_title": (
        "Lanterns", "Desert Rose", "Two Left Shoes", "Snow in April", "Thunder Road Home", "Coffee at Six",
        "Whisper Game", "Summer Rain", "The Long Goodbye", "Orange Skies",
    ),
    "playlist": (
        "Rainy days", "Workout mix", "Slow mornings", "Party time", "Piano evening", "Beach house",
        "Deep work",
        "Kids in the car", "Old favorites", "Winter walks",
    ),
}  # fmt: skip

HELD_OUT_LISTS: Mapping[str, Sequence[Entry]] = {
    "event": (
        "Board meeting", "Pottery course", "Vet visit", "Quiz evening", "Roof inspection", "Tango class",
        "Farewell drinks", "Blood donation", "Project kickoff", "House concert",
    ),
    "person": (
        "Greta Olsen", "Samuel Obi", "Yara Costa", "Hugo Blanc", "Edith Warner", "Kofi Mensah", "Petra Simic",
        "Liam Doyle", "Wanda Kowal", "Rafael Nunes", "Mei Tanaka", "Ingrid Holm",
    ),
    "phone": ("555-0231", "555-0275", "555-0219", "555-0263", "555-0287", "555-0205", "555-0247", "555-0293"),
    "message": (
        "The shop closes early", "I booked us a table", "Your dog is at my place", "Do not wait for me",
        "The exam went well", "Please water my orchids", "I forgot the charger", "The road is icy",
    ),
    "mail_address": (
        "greta@fjordmail.com", "help@tallships.org", "edith.warner@inbox.net", "rector@westcollege.org",
        "kofi@mensah.com", "claims@safeharbor.net", "desk@grandlibrary.org", "liam@doyle.net",
    ),
    "mail": (
        ("Leaking roof", "Water is dripping into the attic"),
        ("Piano for sale", "Is the piano still available?"),
        ("Application", "I would like to apply for the post"),
        ("Lost umbrella", "Has anybody handed in a green umbrella?"),
        ("Reading group", "I have finished the novel"),
        ("Parking permit", "My permit runs out soon"),
        ("Noise", "The builders start far too early"),
        ("Recipe", "Which flour do you use for the dumplings?"),
    ),
    "subject": ("As promised", "For your archive", "The wording", "Copy of the document", "Please proofread"),
    "mail_query": (
        "gym membership", "train strike", "survey results", "customs form", "lost luggage",
        "pension statement",
        "allergy test", "moving boxes",
    ),
    "new_file": (
        ("club/members.txt", "Greta, Hugo, Yara"),
        ("studio/palette.txt", "ochre, teal, ivory"),
        ("research/question.md", "Why do geese fly in a wedge?"),
        ("legal/clause.txt", "Pets are allowed"),
        ("boat/checklist.txt", "ropes, flares, life vests"),
        ("kitchen/menu.txt", "onion tart and plum cake"),
        ("theater/cast.txt", "A baker, a queen and a ghost"),
        ("research/result.txt", "The sample was too small"),
    ),
    "path": (
        "club/rules.txt", "studio/orders.csv", "research/survey.md", "legal/will.txt", "boat/logbook.txt",
        "theater/script.txt", "kitchen/stock.csv", "research/abstract.txt", "legal/deed.txt",
    ),
    "move": (
        ("club/photo.txt", "press/photo.txt"),
        ("studio/sketch.md", "portfolio/sketch.md"),
        ("boat/map.txt", "boat/charts/map.txt"),
        ("legal/notes.txt", "legal/minutes.txt"),
        ("theater/act.txt", "theater/finale.txt"),
        ("research/raw.csv", "research/clean.csv"),
        ("kitchen/soup.txt", "club/soup.txt"),
        ("press/release.md", "outbox/release.md"),
    ),
    "folder": ("club", "studio", "research", "legal", "theater", "boat/charts", "press"),
    "product": (
        "wine glasses", "hiking poles", "oven mitts", "chess sets", "ceramic plates", "paint brushes",
        "cotton shirts", "bicycle lights", "notebooks", "tennis balls",
    ),
    "street": (
        "31 Cedar Drive", "5 Abbey Close", "119 Queens Road", "77 Willow Court", "13 Canal Walk",
        "9 Orchard Way",
        "53 Linden Avenue",
    ),
    "payee": (
        "Nordic Heating", "Pine Clinic", "Vista Mobile", "Canal Storage", "Sunrise Daycare", "Atlas Movers",
        "Ferry Lines", "Crown Optics",
    ),
    "category": ("hobbies", "pets", "cosmetics", "parking", "concerts", "snacks", "furniture"),
    "city": ("Turin", "Ghent", "Osaka", "Dallas", "Aarhus", "Bilbao", "Calgary", "Perth", "Nantes",
    "Tallinn"),
    "flight_id": ("QF731", "EK155", "SQ377", "DY1913", "EI609", "AC873", "LO457", "NH211"),
    "booking_id": ("H4317", "F9151", "H6673", "F3725", "H1199", "F8543", "H7035", "F5267"),
    "label": (
        "Rowing", "Switch off the oven", "Water aerobics", "Meet the inspector", "Night shift", "Stretch",
        "Vitamin drops", "Turn the mattress",
    ),
    "note": (
        "Attic", "Theater cast", "Knots", "Wine cellar", "Marathon", "Thesis outline", "Beekeeping",
        "Latin proverbs", "Moving day",
    ),
    "note_text": (
        "The ladder is in the shed", "Order more jars", "Twice around the lake", "Ask Edith for the score",
        "Chapter four is too long", "Check the hive after rain", "The red cable goes left",
        "Wrap the mirrors in blankets",
    ),
    "note_query": (
        "honey jars", "attic ladder", "tax number", "blood type", "cheese fondue", "choir score",
        "spare fuse",
        "radio frequency",
    ),
    "todo": (
        "sweep the chimney", "repair the kite", "renew the parking permit", "sharpen the knives",
        "collect the parcel", "paint the shed", "cancel the newspaper", "test the smoke alarm",
        "polish the shoes",
    ),
    "song": (
        ("Copper Kettle", "The Wrens"), ("Distant Drums", "Elsa Vane"), ("Ivory Tower", "Night Ferry"),
        ("Dancing Alone", "Ruben Stark"), ("Tin Soldier Blues", "Mabel Reed"), ("Cinnamon Street",
        "Hollow Oak"),
        ("Gravity", "Anton Bell"), ("Almost Home", "The Meadows"),
    ),
    "song_title": (
        "Velvet Morning", "Broken Compass", "Marigold", "Satellite Heart", "Quiet Thunder", "Lost in Lisbon",
        "Seven Bridges", "Paper Crown",
    ),
    "playlist": (
        "Candlelight", "Sunday cooking", "Long drives", "Gym hour", "Study hall", "Barbecue", "Train rides",
        "Lullabies",
    ),
}  # fmt: skip


def _plain(*numbers: float) -> dict[float, str]:
    """Numbers that are always given in digits."""
    return dict.fromkeys(numbers, "")


_EVEN_WORDS = {10: "ten", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy"}
_ODD_WORDS = {
    15: "fifteen",
    25: "twenty-five",
    35: "thirty-five",
    45: "forty-five",
    65: "sixty-five",
    75: "seventy-five",
}

TRAINING_NUMBERS: Mapping[str, Mapping[float, str]] = {
    "minutes": {
        20: "twenty minutes", 30: "half an hour", 40: "forty minutes", 60: "an hour",
        90: "an hour and a half",
        120: "two hours", 50: "", 100: "",
    },
    "email_id": _plain(412, 538, 664, 226, 750, 318, 972, 104, 896, 440),
    "order_id": _plain(4812, 3056, 7724, 9140, 2268, 6334, 5590, 1478, 8602, 3946),
    "quantity": {2: "a couple of", 6: "half a dozen", 24: "two dozen", 10: "ten", 4: "", 8: "", 14: "",
    16: ""},
    "price": {50: "fifty", 100: "a hundred", 200: "two hundred", 40: "forty", 24: "", 64.5: "", 130: "",
    76: ""},
    "amount": {
        50: "fifty", 100: "a hundred", 200: "two hundred", 60: "sixty", 1000: "a thousand", 24: "", 32.5: "",
        48: "", 64.2: "", 76.4: "", 96: "", 140: "", 210: "", 326: "", 450: "", 274.6: "",
    },
    "sum": {
        50: "fifty", 100: "a hundred", 200: "two hundred", 60: "sixty", 1000: "a thousand", 24: "", 48: "",
        140: "", 210: "", 326: "", 450: "", 1600: "",
    },
    "limit": {6: "six", 10: "ten", 20: "twenty", 4: "", 8: "", 14: ""},
    "passengers": {2: "two", 4: "four", 6: "six", 8: "eight"},
    "nights": {2: "two nights", 14: "two weeks", 4: "four nights", 28: "four weeks", 6: "", 8: "", 10: ""},
    "celsius": _plain(16, 18, 20, 22, 24, 18.5, 20.5, 22.5),
    "level": _EVEN_WORDS | _plain(34, 56, 22, 78),
    "days": {10: "ten days", 14: "two weeks", 28: "four weeks", 42: "six weeks", 20: "", 40: "", 60: "",
    90: "", 100: ""},
    "people": {4: "four", 6: "half a dozen", 8: "eight", 10: "ten", 2: ""},
    "percent": _EVEN_WORDS | _plain(4, 8, 16, 18, 22, 24),
    "number": _plain(250, 420, 640, 1200, 360, 90, 74, 1800, 560),
    "measure": _EVEN_WORDS | {100: "a hundred"} | _plain(6, 14, 26, 42, 2.5, 7.5, 160),
}  # fmt: skip

HELD_OUT_NUMBERS: Mapping[str, Mapping[float, str]] = {
    "minutes": {
        15: "a quarter of an hour", 45: "three quarters of an hour", 75: "an hour and a quarter",
        150: "two and a half hours", 180: "three hours", 25: "twenty-five minutes", 35: "", 55: "",
    },
    "email_id": _plain(413, 557, 671, 239, 785, 301, 943, 127),
    "order_id": _plain(4813, 3097, 7731, 9165, 2279, 6345, 5507, 1493),
    "quantity": {5: "five", 7: "seven", 12: "a dozen", 36: "three dozen", 3: "", 9: "", 15: ""},
    "price": {75: "seventy-five", 35: "thirty-five", 300: "three hundred", 45: "forty-five", 27: "",
    59.95: "", 95: ""},
    "amount": {
        75: "seventy-five", 35: "thirty-five", 300: "three hundred", 500: "five hundred", 27: "", 43.75: "",
        61.25: "", 93: "", 125: "", 145: "", 275: "", 349.95: "", 55: "",
    },
    "sum": {
        75: "seventy-five", 35: "thirty-five", 300: "three hundred", 500: "five hundred", 27: "", 55: "",
        93: "",
        125: "", 145: "", 275: "", 1315: "",
    },
    "limit": {5: "five", 7: "seven", 12: "dozen", 15: "fifteen", 3: "", 9: ""},
    "passengers": {3: "three", 5: "five", 7: "seven"},
    "nights": {7: "a week", 21: "three weeks", 3: "three nights", 5: "", 9: "", 11: ""},
    "celsius": _plain(17, 19, 21, 23, 17.5, 19.5, 21.5),
    "level": _ODD_WORDS | _plain(33, 57, 91),
    "days": {7: "a week", 21: "three weeks", 35: "five weeks", 49: "seven weeks", 15: "", 45: "", 75: "",
    99: ""},
    "people": {5: "five", 7: "seven", 12: "a dozen", 9: "nine", 3: ""},
    "percent": _ODD_WORDS | _plain(5, 7, 9, 17),
    "number": _plain(255, 425, 615, 1350.5, 345, 95, 1875, 77),
    "measure": _ODD_WORDS | _plain(3, 7, 19, 27, 1.5, 9.5, 125),
}  # fmt: skip
