// The choice of a tile.
//
// Included by fma_tiles-inl.h and words-inl.h.  Expects Element, Result, kVectors, Rows, and a
// template tile<rows, vectors>.

// The tile with the most rows that `rows` allows.
template <int kColumns, int kRows>
static Tile<Element, Result> choose(int64_t rows) {
  if constexpr (kRows == 1) {
    return {1, tile<1, kColumns>};
  } else {
    if (rows >= kRows) return {kRows, tile<kRows, kColumns>};
    constexpr int fewer = kRows > 8 ? 8 : kRows > 6 ? 6 : kRows > 4 ? 4 : kRows - 1;
    return choose<kColumns, fewer>(rows);
  }
}

static Tile<Element, Result> tile_for(int vectors, int64_t rows) {
  switch (vectors) {
    case 1: return choose<1, Rows(1)>(rows);
    case 2: return choose<2, Rows(2)>(rows);
    case 3: return choose<(kVectors >= 3 ? 3 : 1), Rows(kVectors >= 3 ? 3 : 1)>(rows);
    default: return choose<(kVectors >= 4 ? 4 : 1), Rows(kVectors >= 4 ? 4 : 1)>(rows);
  }
}
