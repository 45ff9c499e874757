"""Word lists that `general.py` makes its items from."""

PEOPLE = (
    "man",
    "woman",
    "boy",
    "girl",
    "farmer",
    "teacher",
    "doctor",
    "sailor",
    "soldier",
    "baker",
    "child",
    "guest",
    "neighbor",
    "driver",
    "painter",
    "student",
    "mother",
    "father",
    "uncle",
    "queen",
)

VERBS = (
    ("found", "find", "finds"),
    ("saw", "see", "sees"),
    ("took", "take", "takes"),
    ("carried", "carry", "carries"),
    ("cleaned", "clean", "cleans"),
    ("left", "leave", "leaves"),
    ("wanted", "want", "wants"),
    ("held", "hold", "holds"),
    ("opened", "open", "opens"),
    ("used", "use", "uses"),
)
"""(past, base, third person)."""

THINGS = (
    ("old", "book"),
    ("small", "box"),
    ("red", "bag"),
    ("long", "letter"),
    ("new", "door"),
    ("heavy", "stone"),
    ("white", "cup"),
    ("broken", "chair"),
)
"""(adjective, noun)."""

PLACES = (
    "in the house",
    "near the river",
    "on the table",
    "at the station",
    "after the storm",
    "before the lesson",
    "behind the church",
    "with a friend",
)

PLURALS = (
    ("man", "men"),
    ("woman", "women"),
    ("child", "children"),
    ("farmer", "farmers"),
    ("teacher", "teachers"),
    ("girl", "girls"),
    ("boy", "boys"),
    ("doctor", "doctors"),
    ("driver", "drivers"),
    ("student", "students"),
    ("mother", "mothers"),
    ("guest", "guests"),
)
"""(singular, plural)."""

FITTING = (
    ("bread", ("The baker sells fresh", "She cut two slices of", "He put butter on his")),
    ("water", ("The fish swim in the", "I am thirsty, give me a glass of", "The ship lies deep in the")),
    (
        "sun",
        ("In the morning we see the rising", "It is warm in the light of the", "The earth moves around the"),
    ),
    ("rain", ("Take an umbrella against the", "The street is wet from the", "Dark clouds bring")),
    (
        "snow",
        (
            "In winter the fields are white with",
            "The children made a man out of",
            "The mountain is covered with",
        ),
    ),
    ("letter", ("He wrote her a long", "The postman brought a", "She put a stamp on the")),
    ("horse", ("The rider sat on his", "The farmer gave hay to the", "The cart was pulled by a")),
    ("dog", ("The postman was bitten by a", "I heard the barking of a", "He walks in the park with his")),
    ("cat", ("The mouse ran away from the", "On the sofa purrs a", "Milk is drunk by the little")),
    ("bird", ("In the tree sings a", "A nest was built by the", "Two wings has every")),
    ("book", ("In the library she borrowed a", "He turned the pages of the", "The author wrote another")),
    ("school", ("The teacher works in a", "Every morning the children go to", "Pupils learn at")),
    (
        "hospital",
        ("After the accident he was brought to the", "The nurse works in a", "Doctors treat patients in the"),
    ),
    ("train", ("At the station we waited for the", "On the rails came the", "The ticket is for the next")),
    (
        "key",
        (
            "The door is locked and I have no",
            "She turned the lock with her",
            "Without it nobody opens the safe: the",
        ),
    ),
    ("window", ("It is cold, please close the", "The ball broke the glass of the", "She looked out of the")),
    ("knife", ("He cut the meat with a", "Be careful, sharp is the", "Next to the fork lies the")),
    ("bed", ("I am tired and go to", "At night he sleeps in his", "She put a clean sheet on the")),
    (
        "garden",
        ("Flowers and vegetables grow in our", "She waters the plants in the", "Behind the house there is a"),
    ),
    ("king", ("On the throne sat the", "The crown belongs to the", "The queen is the wife of the")),
    ("ship", ("The captain is on his", "Across the ocean sailed the", "In the harbor lies a big")),
    ("money", ("In the bank they keep their", "He paid with all his", "To buy a house you need a lot of")),
    (
        "clock",
        ("To know the time look at the", "On the wall hung a ticking", "The hands moved on the face of the"),
    ),
    (
        "shoes",
        ("He walked so far that he wore out his", "Before you enter take off your", "On your feet you wear"),
    ),
    ("hat", ("On his head he wore a", "The wind blew away her", "The gentleman took off his")),
    ("song", ("The choir sang another", "Everybody knows the tune of this", "The singer wrote a new")),
    ("fire", ("We warmed our hands at the", "Smoke rises from the", "The house burnt down in the")),
    ("egg", ("The hen laid an", "For breakfast I boil an", "Out of the shell broke a fried")),
    ("milk", ("The cow gives us", "Babies drink", "Cheese is made from")),
    (
        "moon",
        ("At night the sky is lit by the full", "In a rocket they flew to the", "The tides are made by the"),
    ),
    (
        "doctor",
        ("I am ill and go to see a", "The medicine was ordered by the", "To treat patients you must be a"),
    ),
    ("bridge", ("To cross the river we need a", "Over the valley leads a high", "Boats pass below the")),
    (
        "map",
        (
            "We are lost, look at the",
            "Cities and roads are shown on the",
            "The sailor marked the island on his",
        ),
    ),
    (
        "sugar",
        (
            "My tea is not sweet, pass me the",
            "Cakes are full of",
            "Sweets are bad for your teeth because of the",
        ),
    ),
    (
        "thread",
        ("With a needle she took a", "The tailor sewed the button on with", "A spider hangs on a thin"),
    ),
    (
        "mirror",
        (
            "He saw his own face in the",
            "She combed her hair before the",
            "Seven years of bad luck bring a broken",
        ),
    ),
    ("soap", ("Wash your hands with", "In the bathroom lies a piece of", "Bubbles are made with water and")),
    (
        "ladder",
        ("He climbed up to the roof on a", "To pick the apples she needs a", "The steps are broken on the"),
    ),
)
"""(word, sentences that ask for it)."""

OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("long", "short"),
    ("old", "young"),
    ("rich", "poor"),
    ("dark", "light"),
    ("wet", "dry"),
    ("fast", "slow"),
    ("high", "low"),
    ("happy", "sad"),
    ("strong", "weak"),
    ("full", "empty"),
    ("open", "closed"),
    ("early", "late"),
    ("clean", "dirty"),
    ("good", "bad"),
    ("hard", "soft"),
    ("loud", "quiet"),
    ("near", "far"),
    ("wide", "narrow"),
    ("thick", "thin"),
    ("true", "false"),
    ("right", "wrong"),
    ("black", "white"),
    ("day", "night"),
    ("summer", "winter"),
    ("war", "peace"),
    ("love", "hate"),
    ("question", "answer"),
    ("friend", "enemy"),
    ("begin", "end"),
    ("buy", "sell"),
    ("give", "take"),
    ("push", "pull"),
    ("win", "lose"),
    ("come", "go"),
    ("laugh", "cry"),
    ("up", "down"),
    ("inside", "outside"),
    ("always", "never"),
)

HOMES = (
    ("fish", "in the sea"),
    ("birds", "in a nest"),
    ("bees", "in a hive"),
    ("a judge", "in a court"),
    ("a priest", "in a church"),
    ("books for everybody", "in a library"),
    ("old paintings", "in a museum"),
    ("an actor", "in a theater"),
    ("prisoners", "in a jail"),
    ("airplanes", "at an airport"),
    ("ships", "in a harbor"),
    ("camels", "in the desert"),
    ("bread in the oven", "in a bakery"),
    ("patients", "in a hospital"),
    ("pupils", "in a school"),
    ("goods on shelves", "in a shop"),
    ("workers and machines", "in a factory"),
    ("cows and hens", "on a farm"),
    ("guests who stay for a night", "in a hotel"),
    ("trains", "at a station"),
)
"""(who or what, where)."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
