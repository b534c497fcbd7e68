"""What all operations stand on: canonical values, the tables, the interpreter, ``define``."""
