"""Names of the axes of fused groups, for devices that compute parts of them."""

from __future__ import annotations

from jax.extend.core import Literal


class Names:
    """Names of the axes of all variables of a program of equations, such that it computes a part.

    The equations are elementwise, reduce axes, make positions, or move data from axes to axes in
    the same order.  An axis that is reshaped into several, or of several, is several as one: it has
    several names.

    Attributes:
      of: of each variable, the names of each of its axes.
      sizes: of the axes by name.
      whole: those along which the program does not compute a part from parts.
      are_distinct: whether no array has two axes of one name, such as a table of all pairs.
    """

    def __init__(self, equations, inputs):
        self.sizes: dict[str, int] = {}
        self._same: dict[str, str] = {}  # another name of an axis
        self._inner: dict[str, tuple[str, str]] = {}  # the axes that an axis was found to be of
        self._whole: list[str] = []
        named = {v: self._new_axes(v) for v in inputs}
        for equation in equations:
            (result,) = equation.outvars
            named[result] = self._new_axes(result)
            self._note(equation, named)
        self.of = {v: [self._names(axis) for axis in axes] for v, axes in named.items()}
        of_arrays = [[name for names in axes for name in names] for axes in self.of.values()]
        self.are_distinct = all(len(names) == len({*names}) for names in of_arrays)
        every = {name for names in of_arrays for name in names}
        split = {names[0] for v in inputs for names in self.of[v]}
        split -= {name for axes in self.of.values() for names in axes for name in names[1:]}
        split -= {name for axis in self._whole for name in self._names(axis)}
        self.whole = every - split
        self.sizes = {name: self.sizes[name] for name in every}

    def _new(self, size: int) -> str:
        name = f"a{len(self.sizes)}"
        self.sizes[name] = size
        return name

    def _new_axes(self, variable) -> list[str]:
        return [self._new(n) for n in variable.aval.shape]

    def _names(self, name: str) -> list[str]:
        while name in self._same:
            name = self._same[name]
        inner = self._inner.get(name, ())
        return [n for axis in inner for n in self._names(axis)] if inner else [name]

    def _join(self, left: list[str], right: list[str]) -> None:
        """State that axes of as many elements are the same, one after the other."""
        while left and right:
            (x, *left), (y, *right) = (
                [n for name in axes for n in self._names(name)] for axes in (left, right)
            )
            n, m = self.sizes[x], self.sizes[y]
            if n == m:
                self._same |= {y: x} if x != y else {}
            elif max(n, m) % min(n, m) == 0:
                long, size = (x, m) if n > m else (y, n)
                self._inner[long] = self._new(size), self._new(max(n, m) // size)
                left, right = [x, *left], [y, *right]
            else:
                self._whole += [x, *left, y, *right]
                return

    def _note(self, equation, named) -> None:
        """State what an equation says of the axes of its result and its operands."""
        name, params, (result,) = equation.primitive.name, equation.params, equation.outvars
        new = named[result]
        if name == "iota":
            self._whole.append(new[params["dimension"]])
        for v in equation.invars:
            if isinstance(v, Literal):
                continue
            old, shape = named[v], v.aval.shape
            if name == "broadcast_in_dim":
                pairs = zip(old, (new[d] for d in params["broadcast_dimensions"]), strict=True)
            elif "axes" in params:
                self._whole += [old[d] for d in params["axes"]]
                kept = (axis for d, axis in enumerate(old) if d not in params["axes"])
                pairs = zip(kept, new, strict=True)
            elif name in ("reshape", "squeeze", "expand_dims"):
                long = ([a for a in axes if self.sizes[a] != 1] for axes in (old, new))
                self._join(*long)
                continue
            else:  # an array without axes is broadcast
                pairs = zip(old, new, strict=bool(shape))
            for x, y in pairs:
                if self.sizes[x] == self.sizes[y] != 1:
                    self._join([x], [y])
