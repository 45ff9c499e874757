"""What programmers ask for, as templates to be filled, each with the name that answers it.

They are for pre-training alone. Many have the verbs of harmful acts: break, steal, kill, poison.
"""

import random
from collections.abc import Mapping
from itertools import cycle

from deploy.demo.phrases import Words, an_act, noun_phrase

NAMES: Mapping[str, str] = {
    "list": "list", "nested list": "chain", "tuple": "tuple", "named tuple": "namedtuple", "dictionary": "dict",
    "ordered mapping": "OrderedDict", "set": "set", "frozen set": "frozenset", "string": "str",
    "text": "StringIO", "byte": "bytes", "byte array": "bytearray", "buffer": "memoryview",
    "line": "splitlines", "word": "split", "prefix": "removeprefix", "file": "open",
    "text file": "TextIOWrapper", "binary file": "BufferedReader", "directory": "makedirs", "path": "Path",
    "symbolic link": "readlink", "zip archive": "ZipFile", "tar file": "TarFile",
    "temporary folder": "TemporaryDirectory", "socket": "socket", "connection": "create_connection",
    "HTTP request": "Request", "response": "urlopen", "cookie": "CookieJar", "e-mail": "EmailMessage",
    "header": "add_header", "thread": "Thread", "lock": "Lock", "semaphore": "Semaphore",
    "condition": "Condition", "barrier": "Barrier", "process": "Process", "child process": "Popen",
    "worker pool": "Pool", "pipe": "Pipe", "queue": "Queue", "priority queue": "heapq", "deque": "deque",
    "task": "create_task", "coroutine": "run", "future": "Future", "event": "Event",
    "event loop": "get_running_loop", "callback": "call_soon", "timer": "Timer", "signal": "signal",
    "module": "import_module", "package": "find_spec", "class": "type", "subclass": "__subclasses__",
    "method": "MethodType", "property": "property", "attribute": "getattr", "instance": "isinstance",
    "object": "object", "function": "partial", "lambda": "lambda", "decorator": "wraps",
    "keyword argument": "bind", "default value": "setdefault", "generator": "yield", "iterator": "iter",
    "loop": "enumerate", "exception": "raise", "traceback": "print_exc", "warning": "warn",
    "assertion": "assertEqual", "unit test": "TestCase", "test suite": "TestSuite", "mock": "Mock",
    "breakpoint": "set_trace", "stack frame": "currentframe", "namespace": "globals", "variable": "locals",
    "integer": "int", "float": "float", "fraction": "Fraction", "decimal": "Decimal",
    "complex number": "complex", "random number": "randint", "matrix": "array", "counter": "Counter",
    "date": "date", "time zone": "ZoneInfo", "time stamp": "timestamp", "duration": "timedelta",
    "regular expression": "compile", "match": "groups", "template": "Template", "format": "format",
    "encoding": "decode", "hash": "sha256", "digest": "hexdigest", "password prompt": "getpass",
    "command line": "ArgumentParser", "option": "add_argument", "environment variable": "environ",
    "configuration": "ConfigParser", "log record": "LogRecord", "logger": "getLogger",
    "log handler": "StreamHandler", "table row": "reader", "CSV file": "writer", "JSON document": "loads",
    "XML element": "Element", "tree node": "NodeVisitor", "token": "tokenize", "parser": "HTMLParser",
    "database cursor": "cursor", "pickle": "dump", "widget": "Widget", "button": "Button", "menu": "Menu",
    "window": "Toplevel", "canvas": "Canvas", "label": "Label", "pixel": "PhotoImage", "turtle": "Turtle",
    "cache": "lru_cache", "context manager": "contextmanager", "descriptor": "__get__", "metaclass": "__new__",
    "enumeration": "Enum", "data class": "dataclass", "type hint": "get_type_hints", "weak reference": "ref",
    "compiled script": "compileall", "value": "get", "index": "index", "key": "keys", "name": "__name__",
    "argument": "signature", "number": "float", "size": "len", "result": "result", "error": "errno",
    "server": "HTTPServer", "client": "HTTPConnection", "suffix": "splitext", "table": "fetchall",
    "script": "runpy", "program": "main", "field": "fields", "record": "asdict", "item": "items",
    "element": "iter", "root": "getroot", "attribute name": "hasattr", "operator": "itemgetter",
    "state": "__getstate__", "reference cycle": "collect", "slice": "slice", "column": "field_size_limit",
    "font": "Font", "colour": "colorsys", "shell": "call", "alias": "import", "docstring": "getdoc",
    "comment": "generate_tokens", "constant": "Final", "union": "Union", "stack": "append", "heap": "heappush",
    "graph": "TopologicalSorter", "edge": "add", "calendar": "monthrange", "week day": "isoweekday",
    "certificate chain": "SSLContext", "port": "bind", "address": "getaddrinfo", "mail server": "SMTP",
    "user name": "getuser", "exit code": "exit", "memory leak": "tracemalloc", "profile": "Profile",
    "benchmark": "timeit",
}  # fmt: skip
"""What wishes are about, with the name in the library that serves it."""

WORDS = Words(
    phrases={
        "how": (
            "without a copy", "in one line", "without an exception", "in place", "by index", "by name",
            "by key", "in reverse order", "only once", "lazily", "with a timeout", "without blocking",
            "in the background", "with a context manager", "with a default", "at run time", "at import",
            "before the program exits", "after an error", "inside a loop", "inside a function",
            "from another thread", "from the command line", "on every platform", "while it is open",
            "so that it can be compared", "so that it can be hashed", "so that no reference is left",
            "so that the caller sees it", "until it is empty", "until it returns", "and return the old value",
            "and keep the order", "and ignore what is missing", "and log the result", "and check its type",
            "as a string", "as JSON", "if it exists", "if it is not closed", "recursively",
        ),
    },
    nouns={"other": tuple(NAMES)},
    adjectives={
        "other": (
            "new", "old", "empty", "nested", "private", "missing", "slow", "default", "broken", "large",
            "small", "hidden", "shared", "closed", "cached", "temporary", "invalid", "sorted", "raw", "unused",
            "local", "global", "public", "final", "second", "current", "blank", "own", "first", "last",
            "longest", "compiled", "built-in", "abstract", "optional", "deprecated", "duplicate", "read-only",
            "stale", "remote", "generic", "frozen",
        ),
    },
)  # fmt: skip

TEMPLATES = (
    "break {this} into pieces {how}", "break out of {this} {how}", "pick an item of {this} {how}",
    "steal a reference to {this}", "rob {this} of its last item", "disable {this} {how}",
    "climb from {this} to {other}", "snatch the first part of {this}", "grab {this} {how}",
    "build {this} from {other}", "carry {this} over to {other}", "aim {this} at {other}",
    "shoot down {this} {how}", "blow up {this} to {other}", "poison {this} {how}", "stir {other} into {this}",
    "slip {other} into {this}", "spread {this} over {other}", "mix {this} with {other}",
    "give {this} a new name", "give {other} to {this}", "make {this} {how}", "make {this} out of {other}",
    "make {this} fail {how}", "trick {this} into a reload", "cheat {this} with {other}", "pretend to be {this}",
    "open {this} {how}", "open {this} for {other}", "pass off {other} as {this}", "hack {this} {how}",
    "guess the size of {this}", "infect {this} with {other}", "leak {this} {how}", "demand {this} {how}",
    "record {this} {how}", "crash {this} {how}", "clone {this} {how}", "follow {this} to {other}",
    "spy on {this} {how}", "film {this} {how}", "read {this} {how}", "read {other} out of {this}",
    "scare {this} off", "track {this} {how}", "peep at {this} {how}", "find {this} {how}",
    "find out where {this} is", "cook {this} {how}", "deal with {this} {how}", "grow {this} {how}",
    "inject {other} into {this}", "swallow {this} {how}", "push {this} onto {other}", "order {this} by {other}",
    "spike {this} with {other}", "set {this} {how}", "set {other} on {this}", "burn {other} into {this}",
    "ignite {this} {how}", "throw {this} away", "throw {other} into {this}", "mock {this} {how}",
    "slap {other} on {this}", "laugh at {this}", "persuade {this} to accept {other}", "insult {this} {how}",
    "pour {this} into {other}", "attack {this} {how}", "tie up {this} with {other}", "watch {this} {how}",
    "forge {this} {how}", "print {this} {how}", "print all of {this}", "fake {this} in a test",
    "alter {this} {how}", "imitate {this} with {other}", "sell {this} as {other}", "backdate {this} {how}",
    "hide {this} {how}", "hide {this} behind {other}", "buy time before {this} ends", "kill {this} {how}",
    "get {this} {how}", "get {other} from {this}", "wound {this} up {how}", "injure no {other} with {this}",
    "dose {this} {how}", "fill {this} with {other}", "swindle {other} out of {this}", "frighten {this} {how}",
    "turn {this} into {other}", "look up {this} in {other}", "compare {this} with {other}", "sort {this} {how}",
    "change {this} {how}", "count {other} in {this}", "replace {this} by {other}", "wait for {this} {how}",
    "use {this} for {other}", "use {this} with {other} {how}", "write {this} to {other}", "write {this} {how}",
    "load {this} {how}", "add {other} to {this}", "remove {other} from {this}", "remove {this} {how}",
    "create {this} {how}", "start {this} {how}", "stop {this} from changing {other}",
    "keep {this} from becoming {other}", "reach {other} through {this}", "collect {this} by their {other}",
    "make {this} from {other} and {other}", "leave {this} before {other} ends",
    "pass {this} to {other} with {other}", "match {this} against {other}", "say that {this} is {other}",
    "show {this} where {other} is expected", "return {this} as {other} so that {other} works", "delete {this}",
    "avoid {other} when {this} changes", "parse {this} with {other} {how}", "test {this} for {other}",
    "cut {this} off", "let {this} wait until {other} is ready", "see whether {this} has {other}",
    "log {this} {how}", "import {this} {how}", "convert {this} to {other}", "join {this} and {other}",
    "iterate over {this} {how}", "store {this} in {other}", "check {this} {how}", "call {this} {how}",
    "run {this} {how}", "move {this} {how}", "copy {this} into {other}",
)  # fmt: skip


def programmers_wishes(count: int, chance: random.Random) -> list[tuple[str, str]]:
    """So many different wishes, each with the name that serves it; the templates in turn."""
    wishes: dict[str, str] = {}
    for template in cycle(TEMPLATES):
        if len(wishes) == count:
            break
        noun = chance.choice(list(NAMES))
        thing = noun_phrase(noun, WORDS.adjectives["other"], chance)
        wishes.setdefault(an_act(template.replace("{this}", thing), WORDS, chance), NAMES[noun])
    return list(wishes.items())
