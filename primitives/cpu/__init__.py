"""Kernels for CPU: the C++ library, what is encoded for it, and other ways to write a body."""
