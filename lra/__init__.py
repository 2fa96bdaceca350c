"""The front door: the command line, and the one place where names become objects."""

from lra import guard

guard.settle()  # here, because every process of ours imports this first, whatever it goes on to do
