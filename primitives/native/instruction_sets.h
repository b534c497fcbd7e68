// What the kernels have for each instruction set, and which one is used.

#pragma once

#include <cstdint>

namespace repjax {

// A function that continues the chains of some rows of accumulators over the terms [0, terms).
template <class Element, class Result>
struct Tile {
  int rows;
  void (*run)(int64_t terms, const Element* const* lhs, const int64_t* lhs_k, const Element* rhs,
              const int64_t* rhs_k, Result* const* rows, bool first, bool last);
};

template <class Element, class Result>
struct Chains {
  int lanes;
  int vectors;
  Tile<Element, Result> (*tile_for)(int vectors, int64_t rows);
  void (*pack)(const Element* from, const int64_t* a, int64_t rows, const int64_t* b,
               int64_t columns, Element* to);
};

// Sums of float32; sums.h says which.
struct Sums {
  int64_t lanes;
  void (*pairwise)(const float* x, int64_t n, int64_t row, int64_t width, float* scratch,
                   float* out);
  void (*pairwise_row)(const float* x, int64_t n, float* scratch, float* out);
  void (*sequential)(const float* x, int64_t n, int64_t row, int64_t width, float* out);
};

struct InstructionSet {
  const char* name;
  const Chains<float, float>& floats;
  const Chains<double, int64_t>& integers;
  const Sums& sums;
};

// The one that is used.
const InstructionSet& instruction_set();


}  // namespace repjax
