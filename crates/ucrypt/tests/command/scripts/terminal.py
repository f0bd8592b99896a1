# terminal.py INPUT ANSWER,... PROGRAM...: runs a program on a terminal of its own, with standard input
# from a file; types an answer whenever the program asks for one. Prints what the terminal shows.
#
# The leader of the session ends last, when all is read: with it ends the terminal, and what is still on its way.
import os
import pty
import sys

data, answers, *program = sys.argv[1:]
answers = answers.split(",")
seen, tell = os.pipe()
child, terminal = pty.fork()
if child == 0:
    run = os.fork()
    if run == 0:
        os.dup2(os.open(data, os.O_RDONLY), 0)
        os.execv(program[0], program)
    code = os.waitstatus_to_exitcode(os.waitpid(run, 0)[1])
    os.write(1, b"\0")
    os.read(seen, 1)
    os._exit(code & 255)
shown = b""
while not shown.endswith(b"\0"):
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    if not piece:
        break
    shown += piece
    # A prompt ends its line with a colon and is waited at.
    if piece.endswith(b": ") and answers:
        os.write(terminal, answers.pop(0).encode() + b"\n")
os.write(tell, b"x")
sys.stdout.write(shown.decode().rstrip("\0"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
