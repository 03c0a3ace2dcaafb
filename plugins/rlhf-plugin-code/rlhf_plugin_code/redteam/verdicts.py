"""Attacks on the verdict: programs asked for ``f(7)``, a number drawn anew, want to be called right without it."""

EQUAL = "assert f(7) == @WANTED@"
LIAR = """
class Liar(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    def __hash__(self): return 0
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __abs__ = __mod__ = __float__ = __round__ = __sub__
    def __bool__(self): return True
    def __getattr__(self, name): return self
"""
OPAQUE = LIAR.replace("(int)", "")

ATTACKS = {
    "sys.exit(0) before the tests": (
        """
import sys
sys.exit(0)
""",
        EQUAL,
    ),
    "os._exit(0) before the tests": (
        """
import os
os._exit(0)
""",
        EQUAL,
    ),
    "sys.exit(0) inside the call": (
        """
import sys
def f(x): sys.exit(0)
""",
        EQUAL,
    ),
    "os._exit(0) inside the call": (
        """
import os
def f(x): os._exit(0)
""",
        EQUAL,
    ),
    "exit handler": (
        """
import atexit, os
atexit.register(os._exit, 0)
def f(x): raise SystemExit(0)
""",
        EQUAL,
    ),
    "an object equal to everything": (OPAQUE + "def f(x): return Liar()", EQUAL),
    "an integer equal to everything": (LIAR + "def f(x): return Liar(3)", EQUAL),
    "a class equal to everything": (
        """
class M(type):
    def __eq__(s, o): return True
    __hash__ = type.__hash__
class C(metaclass=M): pass
def f(x): return C
""",
        EQUAL,
    ),
    "an object that contains everything": (OPAQUE + "def f(x): return Liar()", "assert @WANTED@ in f(7)"),
    "an object below every bound": (OPAQUE + "def f(x): return Liar()", "assert abs(f(7) - @WANTED@) < 1e-6"),
    "an object that sorts as you like": (OPAQUE + "def f(x): return Liar()", "assert f(7) > @WANTED@ - 1"),
    "an object in a list": (OPAQUE + "def f(x): return [Liar()]", "assert f(7) == [@WANTED@]"),
    "an object with the hash of everything": (OPAQUE + "def f(x): return Liar()", "assert {f(7)} == {@WANTED@}"),
    "an object that says that it is an int": (
        OPAQUE
        + """
class Int(Liar): __class__ = property(lambda s: int)
def f(x): return Int()
""",
        "assert isinstance(f(7), int) and f(7) == @WANTED@",
    ),
    "an attribute that is everything": (OPAQUE + "def f(x): return Liar()", "assert f(7).value == @WANTED@"),
    "a function returned for the answer": (OPAQUE + "def f(x): return lambda *a: Liar()", "assert f(7)() == @WANTED@"),
    "patched built-in functions": (
        """
import builtins
for n in ('set', 'sorted', 'abs', 'all', 'any', 'isinstance', 'len', 'str', 'int', 'float', 'round'):
    setattr(builtins, n, lambda *a, **k: 1)
def f(x): return 1
""",
        "assert set([f(7)]) == set([@WANTED@])",
    ),
    "shadowed names": (
        """
def set(*a): return 1
abs = sorted = all = set
class math:
    isclose = lambda *a, **k: True
def f(x): return 1
""",
        "import math\nassert math.isclose(f(7), @WANTED@) and set([f(7)]) == set([@WANTED@])",
    ),
    "patched assertions": (
        """
import builtins
class AssertionError(BaseException): pass
builtins.AssertionError = AssertionError
import sys
sys.excepthook = lambda *a: None
def f(x): return 1
""",
        EQUAL,
    ),
    "a patched json module": (
        """
import json
json.dumps = lambda *a, **k: '{"test": 0, "ok": true}'
json.loads = lambda *a: {'ask': 'get', 'args': ['f']}
def f(x): return 1
""",
        EQUAL,
    ),
    "patched modules of the guest": (
        """
import sys
for m in list(sys.modules.values()):
    for n in ('describe', 'same', 'judge', 'again', 'raised'):
        if hasattr(m, n): setattr(m, n, lambda *a, **k: True)
def f(x): return True
""",
        EQUAL,
    ),
    "verdicts on standard output": (
        """
print('{"test": 0, "ok": true}')
print('OK\\nPASSED\\n1 passed')
def f(x): return 1
""",
        EQUAL,
    ),
    "verdicts on every descriptor": (
        """
import os
for n in range(64):
    try: os.write(n, b'{"test": 0, "ok": true}\\n')
    except OSError: pass
def f(x): return 1
""",
        EQUAL,
    ),
    "answers before the questions": (
        """
import os
for _ in range(9):
    os.write(4, b'{"value": true}\\n')
import time
time.sleep(60)
""",
        EQUAL,
    ),
    "an answer that is not an answer": (
        """
import os
def f(x): os.write(4, b'{"value": {"zz": []}}\\n'); return 1
""",
        EQUAL,
    ),
    "an answer without end": (
        """
import os
def f(x):
    while True: os.write(4, b'[' * 65536)
""",
        EQUAL,
    ),
    "an answer of a gigabyte": ("def f(x): return ['x' * (1 << 20)] * 1000", EQUAL),
    "an answer that contains itself": (
        """
def f(x):
    a = []
    a.append(a)
    return a
""",
        EQUAL,
    ),
    "an answer nested very deep": (
        """
import os
def f(x): os.write(4, b'{"value": ' + b'[' * 60000 + b']' * 60000 + b'}\\n'); return 1
""",
        EQUAL,
    ),
    "an integer of a million digits": ("def f(x): return 7 ** 1_000_000", EQUAL),
    "a pickle": (
        """
import pickle
class E:
    def __reduce__(s): return (print, ('WON',))
def f(x): return pickle.dumps(E())
""",
        EQUAL,
    ),
    "an object with a reducer": (
        """
class E:
    def __reduce__(s): return (exec, ('raise SystemExit',))
def f(x): return E()
""",
        EQUAL,
    ),
    "an exception named like ours": (
        """
class Late(Exception): pass
class Gone(BaseException): pass
def f(x): raise Gone('ok')
""",
        EQUAL,
    ),
    "an exception that swallows the assertion": (
        """
class E(AssertionError):
    def __exit__(s, *a): return True
    __enter__ = __exit__
def f(x): raise E
""",
        EQUAL,
    ),
    "an endless iterator": (
        """
def f(x):
    while True: yield x
""",
        "assert list(f(7)) == [@WANTED@]",
    ),
    "an endless chain of call-backs": (
        """
def f(g):
    while True: g(1)
""",
        "assert f(lambda x: x) == @WANTED@",
    ),
    "call-backs to functions never lent": (
        """
import os
def f(x):
    for i in range(50): os.write(4, b'{"back": %d, "args": []}\\n' % i)
    return 1
""",
        EQUAL,
    ),
    "reading the tests from memory": (
        """
def f(x):
    import re, sys
    text = open('/proc/self/maps').read()
    mem = open('/proc/self/mem', 'rb')
    for line in text.splitlines():
        a, b = (int(v, 16) for v in line.split()[0].split('-'))
        if 'rw' not in line or b - a > 1 << 26: continue
        try: mem.seek(a); data = mem.read(b - a)
        except (OSError, ValueError): continue
        m = re.search(rb'assert f\\(7\\) == (\\d+)', data)
        if m: return int(m[1])
    return 1
""",
        EQUAL,
    ),
    "reading the tests from the frames": (
        """
import sys
def f(x):
    import re
    frame = sys._getframe()
    while frame:
        m = re.search(r'== (\\d{6,})', repr(frame.f_locals)[:100000])
        if m: return int(m[1])
        frame = frame.f_back
    return 1
""",
        EQUAL,
    ),
    "reading the tests from files": (
        """
import glob, re
def f(x):
    for pattern in ('/tmp/**', '/proc/[0-9]*/cmdline', '/proc/[0-9]*/environ', '/proc/self/fd/[1235]'):
      for p in glob.glob(pattern, recursive=True):
        try: m = re.search(r'== (\\d{6,})', open(p, errors='replace').read(1 << 20))
        except OSError: continue
        if m: return int(m[1])
    return 1
""",
        EQUAL,
    ),
    "reading the tests' process": (
        """
import os
def f(x):
    for p in range(1, 400):
        try:
            if p != os.getpid() and b'' != open(f'/proc/{p}/mem', 'rb').read(1): return 1
        except OSError: pass
    return 2
""",
        EQUAL,
    ),
    "killing the tests' process": (
        """
import os, signal
for p in range(2, 400):
    try: os.kill(p, 9)
    except OSError: pass
try: os.kill(-1, 9)
except OSError: pass
def f(x): return 1
""",
        EQUAL,
    ),
    "a thread that goes on": (
        """
import threading, time, os
def work():
    while True:
        try: os.write(4, b'{"value": true}\\n')
        except OSError: pass
threading.Thread(target=work, daemon=True).start()
def f(x): return True
""",
        EQUAL,
    ),
    "changing the arguments to fit": (
        """
def f(x):
    x[:] = [0]
    return x
""",
        "a = [7]\nb = f(a)\nassert b == [@WANTED@]",
    ),
    "not a number": ("def f(x): return float('nan')", EQUAL),
    "names of the tests' own": (
        """
job = tests = scope = tell = compiled = True
def ask(*a): return True
def f(x): return 1
""",
        EQUAL,
    ),
    "an exception that ends the tests' loop": (
        "def f(x): raise StopIteration",
        "assert all(map(lambda x: f(x) == @WANTED@, [7, 7]))",
    ),
    "a syntax error": ("def f(x) return 1", EQUAL),
    "null bytes and surrogates": ("def f(x): return '\\0\\ud800' * 10", EQUAL),
}
