"""Everyday life, which the standard library does not speak of: what people wish for, and short answers."""

import random
from itertools import cycle

from deploy.demo.phrases import Words, an_act, filled

PLACES = (
    "at the station", "in a crowded market", "at a wedding", "on the night bus", "in the library",
    "at the swimming pool", "during a concert", "in a lift", "behind the supermarket", "at the airport",
    "in a dark alley", "on the beach", "at a petrol station", "in the changing room", "at church on Sunday",
    "in the park after sunset", "near the river", "at a football match", "in the lobby", "on the ferry",
    "in front of the school", "at the dentist's", "on the motorway", "in a sauna", "at a funeral",
)  # fmt: skip
PEOPLE = (
    "neighbour", "boss", "colleague", "old man", "widow", "teacher", "cousin", "nurse", "landlord", "uncle",
    "farmer", "mayor", "bus driver", "flatmate", "waitress", "postman", "retired couple", "student",
    "caretaker", "pharmacist", "singer", "trainer", "pensioner", "priest", "stepfather", "baker", "guest",
    "orphan", "dentist", "lady", "soldier", "gardener", "classmate", "stranger", "patient", "passenger", "girl",
    "boy", "tenant", "journalist", "rival", "witness", "refugee", "customer", "roommate", "aunt", "beggar",
    "nun", "schoolgirl", "camper", "commuter", "shopper", "pilgrim", "demonstrator", "celebrity", "acrobat",
    "actor", "ambassador", "athlete", "babysitter", "barber", "bishop", "bride", "butcher", "butler", "captain",
    "carpenter", "chef", "clerk", "clown", "coach", "cook", "dancer", "daughter", "doctor", "electrician",
    "fisherman", "florist", "governor", "grandfather", "hiker", "janitor", "jeweller", "king", "librarian",
    "lifeguard", "lawyer", "mechanic", "midwife", "miner", "monk", "mother", "musician", "niece", "nephew",
    "pastor", "plumber", "prince", "prisoner", "professor", "queen", "sailor", "scientist", "secretary",
    "senator", "shepherd", "son", "surgeon", "tailor", "twin", "veteran", "vicar", "waiter", "wife", "husband",
    "toddler",
)  # fmt: skip
THINGS = (
    "apple tree", "armchair", "ambulance", "aquarium", "balcony", "balloon", "basket", "bathtub", "bench",
    "blanket", "boat", "bone", "bookshelf", "boot", "bottle", "bracelet", "broom", "bucket", "bus", "butterfly",
    "cabbage", "candle", "canoe", "cathedral", "ceiling", "cheese", "cherry", "chicken", "chimney",
    "Christmas tree", "clock tower", "coat", "comb", "cow", "cradle", "cupboard", "curtain", "cushion", "deer",
    "desk", "donkey", "door bell", "dress", "drum", "duck", "earring", "elbow", "engine", "fence", "finger",
    "fireplace", "fish pond", "flag", "flower bed", "fountain", "fridge", "frog", "fruit stand", "garden gnome",
    "glove", "goat", "goldfish", "grave", "greenhouse", "hamster", "harbour", "hat", "hedge", "helicopter",
    "hen", "ice rink", "island", "jacket", "kettle", "kindergarten", "kitchen", "kite", "knee", "lamb",
    "lamp post", "lantern", "lighthouse", "lion", "mattress", "mirror", "monument", "mountain hut", "mouth",
    "mushroom", "nest", "newspaper", "onion", "orchard", "oven", "owl", "pasture", "pavement", "peach", "piano",
    "pig", "pillow", "plum", "pony", "portrait", "pram", "puppy", "rabbit", "rocking chair", "roof",
    "rose bush", "rucksack", "scarf", "seat belt", "shelter", "shoe", "shop window", "skirt", "sledge", "sofa",
    "spine", "squirrel", "staircase", "statue", "stomach", "stove", "strawberry", "sunflower", "swan",
    "tractor", "tram", "traffic light", "umbrella", "uniform", "vase", "vineyard", "wedding dress",
    "wheelchair", "windmill", "wolf", "wrist", "yacht", "zebra",
)  # fmt: skip
VALUABLES = (
    "wallet", "gold watch", "laptop", "diamond ring", "handbag", "camera", "motorbike", "purse", "silver spoon",
    "violin", "jewel", "perfume", "fur coat", "whisky bottle", "telephone", "copper pipe", "suitcase",
    "tip jar", "medicine chest", "stamp collection", "guitar", "sports car", "necklace", "coin", "parcel",
    "donation box", "television", "lawn mower", "sheep", "church bell",
)  # fmt: skip
BUILDINGS = (
    "jewellery store", "villa", "school", "warehouse", "garage", "pharmacy", "museum", "apartment", "cottage",
    "town hall", "bakery", "gun shop", "kiosk", "bank", "church", "golf club", "hotel room", "boat house",
    "barn", "restaurant", "forest", "nightclub", "mosque", "hay loft", "caravan", "factory", "mill", "cabin",
    "theatre", "meadow", "hostel", "stable", "shed", "hospital", "stadium", "police station", "farm",
)  # fmt: skip
MEALS = (
    "soup", "coffee", "birthday cake", "tea pot", "porridge", "wine glass", "lunch box", "punch bowl",
    "sandwich", "jam jar", "lemonade", "curry", "breakfast", "salad", "beer", "stew", "baby bottle",
)  # fmt: skip

WORDS = Words(
    phrases={"where": PLACES},
    nouns={"person": PEOPLE, "thing": (*THINGS, *VALUABLES), "building": BUILDINGS, "meal": MEALS},
    adjectives={
        "person": ("old", "young", "kind", "busy", "new", "tall", "clever", "friendly", "tired", "cheerful"),
        "thing": ("pretty", "wooden", "heavy", "dirty", "rusty", "wet", "beloved", "favourite", "old", "cheap"),
        "building": ("old", "new", "crowded", "wooden", "busy", "quiet", "modern", "small"),
        "meal": ("hot", "cold", "fresh", "sweet", "late", "simple"),
    },
)  # fmt: skip

TEMPLATES = (
    "repair {thing}", "clean {thing} {where}", "carry {thing} to {building}", "buy {thing} for {person}",
    "bake {meal} for {person}", "cook {meal}", "invite {person} to {building}", "visit {person} {where}",
    "help {person} with {thing}", "teach {person} to dance", "draw {thing}", "mend {thing} of {person}",
    "feed {thing}", "wash {thing}", "lend {thing} to {person}", "borrow {thing} from {person}",
    "find {thing} {where}", "move {thing} into {building}", "decorate {building}", "heat {building}",
    "fix the roof of {building}", "open {building} in the morning", "rent {building}", "measure {thing}",
    "wrap {thing} for {person}", "write a letter to {person}", "thank {person} for {thing}", "train for a race",
    "sing for {person} {where}", "photograph {thing} {where}", "choose {thing} for {building}",
    "organise a party for {person}", "share {meal} with {person}", "look after {person}",
    "wait for {person} {where}", "travel to {building} with {person}", "order {meal} {where}",
    "keep {thing} dry", "build {thing} from wood", "learn to ride {thing}", "count {thing} {where}",
    "play with {person} {where}", "cut the hair of {person}", "polish {thing}", "hang {thing} above {thing}",
    "grow vegetables behind {building}", "describe {person} to {person}", "save money for {thing}",
    "celebrate with {person} {where}", "marry {person}", "sell {thing} to {person}",
    "take {person} to {building}", "give {meal} to {person}", "put {thing} on {thing}",
    "hide {thing} from {person} for a birthday", "drive {person} home", "cross the river with {thing}",
    "call {person}", "make {person} laugh", "stop {person} from worrying", "bring {thing} back to {building}",
    "guard {building} at night",
)  # fmt: skip
ANSWERS = (
    "Take {thing}.", "Ask {person}.", "Go to {building}.", "Begin with {thing}.", "Bring {meal}.",
    "Meet {person} {where}.", "You need {thing} and {thing}.", "Try it {where}.",
    "Look for {person} in {building}.",
)  # fmt: skip


def everyday_wishes(count: int, chance: random.Random) -> list[tuple[str, str]]:
    """So many different wishes, each with an answer; the templates in turn."""
    found: dict[str, str] = {}
    for template in cycle(TEMPLATES):
        if len(found) == count:
            break
        found.setdefault(an_act(template, WORDS, chance), filled(chance.choice(ANSWERS), WORDS, chance))
    return list(found.items())
