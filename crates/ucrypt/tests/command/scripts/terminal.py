# terminal.py INPUT ANSWER,... PROGRAM...: runs a program on a terminal of its own, with standard input
# from a file; types an answer whenever the program asks for one. Prints what the terminal shows.
import os
import pty
import sys

data, answers, *program = sys.argv[1:]
answers = answers.split(",")
child, terminal = pty.fork()
if child == 0:
    os.dup2(os.open(data, os.O_RDONLY), 0)
    os.execv(program[0], program)
shown = b""
while True:
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
sys.stdout.write(shown.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
