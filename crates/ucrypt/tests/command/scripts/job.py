# job.py KEYS,... PROGRAM...: runs a program as a job in the foreground of a terminal, as a shell does;
# types keys (in hex) whenever the program asks, or sends the job a signal (kill15). Brings the job back if it is stopped, and says so.
#
# The leader of the session ends last, when all is read: with it ends the terminal, and what is still on its way.
import os
import pty
import signal
import sys
import termios
import time

answers, *program = sys.argv[1:]
answers = [a if a.startswith("kill") else bytes.fromhex(a) for a in answers.split(",")]
seen, tell = os.pipe()
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    ready, go = os.pipe()
    job = os.fork()
    if job == 0:
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.read(ready, 1)
        os.execv(program[0], program)
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    os.write(go, b"x")
    status = os.waitpid(job, os.WUNTRACED)[1]
    while os.WIFSTOPPED(status):
        echo = bool(termios.tcgetattr(0)[3] & termios.ECHO)
        print("stopped by", os.WSTOPSIG(status), "echo", echo, flush=True)
        os.kill(job, signal.SIGCONT)
        status = os.waitpid(job, os.WUNTRACED)[1]
    echo = bool(termios.tcgetattr(0)[3] & termios.ECHO)
    print("ended with", os.waitstatus_to_exitcode(status), "echo", echo, end="\n\0", flush=True)
    os.read(seen, 1)
    os._exit(0)
shown = b""
while not shown.endswith(b"\0"):
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    if not piece:
        break
    shown += piece
    if shown.endswith(b": ") and answers:
        # cryptsetup prompts first, then turns the echo off and drops what was typed before.
        is_secret = b"assphrase" in shown.splitlines()[-1]
        while is_secret and termios.tcgetattr(terminal)[3] & termios.ECHO:
            time.sleep(0.001)
        answer = answers.pop(0)
        if isinstance(answer, str):
            os.killpg(os.tcgetpgrp(terminal), int(answer[4:]))
        else:
            os.write(terminal, answer)
os.write(tell, b"x")
sys.stdout.write(shown.decode().rstrip("\0"))
os.waitpid(child, 0)
