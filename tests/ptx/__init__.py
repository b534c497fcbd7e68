"""The code for GPUs, without one: compiled, searched, run on the CPU, and counted.

====================  ======================================================================
modules               subject
====================  ======================================================================
``targets``           the GPUs that programs are compiled for
``compile``           what XLA makes of a function, as a ``program``
``parse``, ``lint``   PTX as instructions, and those whose bits are not fixed
``machine``           a GPU that executes PTX: its ``state`` (registers, memories), its
                      ``arithmetic``, its ``matrix_units``, and the ``races`` of its threads
``run``               a program on devices, of which each is an ``executor`` of instructions
                      on arrays of a ``layout``
``assembler``         ``ptxas``
``checks``            what is wrong with programs; ``controls``, of which something is
``cost``              launches, bytes, registers, instructions
====================  ======================================================================

The commands are ``tests/gpu_offline.py`` and ``tests/gpu_cost.py``.
"""
