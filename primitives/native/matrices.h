// Work on matrices by XLA's threads, in IEEE arithmetic.

#pragma once

#include <cstdint>

#include "ieee.h"
#include "threads.h"

namespace repjax {

constexpr int64_t kThread = 1 << 15;  // terms that are worth a thread

// Calls task(i) for i in [0, tasks), which are so many terms; without a pool in this thread.
template <class Task>
void run(xla::ffi::ThreadPool* pool, int64_t tasks, double terms, Task task) {
  in_parallel(pool, pool ? useful_threads(pool, terms, kThread) : 1, tasks, [=](int64_t i) {
    const IeeeArithmetic ieee;
    task(i);
  });
}

// Calls matrix(i, pool) for each matrix: in parallel, or each with the pool.
template <class Matrix>
void each(xla::ffi::ThreadPool* pool, int64_t count, double terms, Matrix matrix) {
  if (count < pool->num_threads()) {
    const IeeeArithmetic ieee;
    for (int64_t i = 0; i < count; ++i) matrix(i, pool);
  } else {
    run(pool, count, terms * count, [=](int64_t i) { matrix(i, nullptr); });
  }
}

}  // namespace repjax
