"""Attacks that want more than their share, or to stay."""

ATTACKS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb that reports": """
import os
count = 0
while count < 200:
    try:
        if os.fork() == 0: os.pause() if hasattr(os, 'pause') else __import__('signal').pause()
    except OSError as error:
        print(error); break
    count += 1
print('WON' if count > 100 else count)
""",
    "thread bomb": """
import threading, time
count = 0
try:
    while count < 500: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); count += 1
except RuntimeError as error: print(error)
print('WON' if count > 100 else count)
""",
    "memory bomb": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "memory bomb that catches": """
held = []
while True:
    try: held.append(bytearray(1 << 20))
    except MemoryError: pass
""",
    "memory bomb of many processes": """
import os, time
for _ in range(10):
    if os.fork() == 0:
        held = [bytearray(b'x' * (1 << 20)) for _ in range(300)]; time.sleep(60)
time.sleep(60)
""",
    "shared memory bomb": """
import mmap
held = []
while True:
    held.append(mmap.mmap(-1, 1 << 25)); held[-1].write(b'x' * (1 << 25))
""",
    "decompression bomb": """
import zlib
small = zlib.compress(bytes(1 << 26))
held = [zlib.decompress(small) for _ in range(1000)]
print('WON')
""",
    "anonymous files": """
import os
for i in range(60):
    descriptor = os.memfd_create(str(i))
    while True: os.write(descriptor, bytes(1 << 20))
print('WON')
""",
    "System V shared memory": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(i + 1, 1 << 24, 0o1666) for i in range(100)]
print('WON' if max(made) >= 0 else __import__('os').strerror(ctypes.get_errno()))
""",
    "disk fill": """
import os
written = 0
try:
    for i in range(4096):
        with open(f'/tmp/{i}', 'wb', buffering=0) as file:
            for _ in range(2): written += file.write(bytes(100 << 10))
except OSError as error: print(error)
print('WON' if written > 64 << 20 else written)
""",
    "inode fill": """
try:
    for i in range(100_000): open(f'/tmp/{i}', 'w').close()
    print('WON')
except OSError as error: print(error)
""",
    "one huge sparse file": """
with open('sparse', 'wb') as file:
    file.truncate(1 << 40)
print('WON')
""",
    "infinite loop": "while True: pass",
    "sleep that ignores signals": """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1000)
""",
    "infinite output": "while True: print('y' * 1000)",
    "infinite output that ignores the limit": """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
while True:
    try: os.write(1, b'y' * 65536); os.write(2, b'n' * 65536)
    except OSError: pass
""",
    "huge integer": "print(len(str(10 ** 10 ** 9)))",
    "huge power in C code": "x = 3 ** (1 << 33)",
    "deep recursion": """
import sys
sys.setrecursionlimit(1 << 30)
def f(n): return f(n + 1) + 1
f(0)
""",
    "nested source": "eval('(' * 100_000 + ')' * 100_000)",
    "regular expression that explodes": "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
    "descriptor exhaustion": """
import os
held = []
try:
    while len(held) < 10_000: held.append(os.open('/dev/null', os.O_RDONLY))
    print('WON')
except OSError as error: print(error)
""",
    "full pipes": """
import os, socket
held = 0
try:
    while held < 1 << 28:
        for end in socket.socketpair():
            end.setblocking(False)
            try:
                while True: held += end.send(bytes(1 << 16))
            except BlockingIOError: os.dup(end.fileno())
    print('WON')
except OSError as error: print(error, held)
""",
    "daemon that stays": """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
print('left a daemon')
""",
    "zombies": """
import os, time
for _ in range(12):
    if os.fork() == 0: os._exit(0)
print('left zombies')
""",
    "sessions that take their neighbours' share of the CPU": """
import os
for _ in range(14):
    if os.fork() == 0:
        for leave in (os.setsid, os.setpgrp):
            try: leave(); os.write(1, b'WON')
            except OSError as error: os.write(1, f'{error}\\n'.encode())
        while True: pass
while True: pass
""",
    "orphan that writes later": """
import os, time
if os.fork() == 0:
    time.sleep(0.5); os.write(1, b'WON')
""",
    "signals to everyone": """
import os, signal
os.kill(-1, signal.SIGKILL)
os.killpg(0, signal.SIGKILL)
print('killed all that it could see')
""",
    "higher priority": """
import os
try: os.nice(-10); print('WON')
except OSError as error: print(error)
try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); print('WON')
except OSError as error: print(error)
""",
    "raised limits": """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    try: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); print('WON')
    except (OSError, ValueError) as error: print(error)
""",
    "sparing oneself when memory runs out": """
try: open('/proc/self/oom_score_adj', 'w').write('-1000'); print('WON')
except OSError as error: print(error)
""",
    "core dump": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nimport ctypes\nctypes.string_at(0)",
    "traps for the next program": """
import builtins, os, sys, json
for name in ('sitecustomize.py', 'usercustomize.py', 'json.py', 'evil.so'):
    open(f'/tmp/{name}', 'w').write('print("WON")')
os.makedirs('/tmp/.local/lib/python3.11/site-packages', exist_ok=True)
open('/tmp/.local/lib/python3.11/site-packages/usercustomize.py', 'w').write('print("WON")')
os.environ['LD_PRELOAD'] = os.path.abspath('evil.so')
os.environ['PYTHONSTARTUP'] = os.path.abspath('json.py')
builtins.print = lambda *a, **k: os.write(1, b'WON')
json.dumps = lambda *a, **k: 'WON'
sys.stdout.write('trap set')
""",
    "compiled code of the standard library": """
import os, json
folder = os.path.dirname(json.__file__)
for path in (json.__file__, folder + '/__pycache__/evil.pyc', folder + '/evil.py'):
    try: open(path, 'ab').write(b''); print('WON')
    except OSError as error: print(error)
""",
}
