"""Random programs, differentiated in every way and compared with PyTorch and with difference quotients.

    python -m tools.fuzz --seed 0 --programs 1000 --report report.txt

A program is a list of lines of NumPy, each with what it means in torch. What differs is reduced to the few lines that
it needs, with numbers that are easy to read.
"""
