// Work for XLA's threads, their arithmetic and their memory.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace repjax {

// IEEE arithmetic for a while: XLA's threads flush subnormals.
class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  // With `flush`, subnormal numbers are zeros, also among operands.  Where the arithmetic is this one
  // already, it is left so: to set it takes as long as a small product.
  explicit IeeeArithmetic(bool flush = false) : saved_(_mm_getcsr()) {
    const unsigned wanted = flush ? 0x9FC0 : 0x1F80;
    is_other_ = (saved_ & kModes) != wanted;
    if (is_other_) _mm_setcsr(wanted);
  }
  ~IeeeArithmetic() {
    if (is_other_) _mm_setcsr(saved_);
  }
  void forget() const { _mm_setcsr(_mm_getcsr() & kModes); }
  // The same right after it was made, when there is mostly nothing to forget.
  void begin() const {
    if (!is_other_ && (saved_ & 2)) forget();
  }
  // Whether since it was told to forget an operand was subnormal, and no other was a NaN.
  bool noted_subnormals() const { return _mm_getcsr() & 2; }
  // Whether since then a result was a new NaN, too large or smaller than normal numbers.
  bool noted_any() const { return _mm_getcsr() & 0x1D; }

 private:
  static constexpr unsigned kModes = 0xFFC0;  // all but what is noted
  unsigned saved_;
  bool is_other_;
#elif defined(__aarch64__)
  explicit IeeeArithmetic(bool flush = false) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{flush} << 24));
  }
  ~IeeeArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }
  void forget() const {}
  void begin() const {}
  bool noted_subnormals() const { return true; }  // this processor does not
  bool noted_any() const { return true; }

 private:
  uint64_t saved_;
#endif
};

// Calls begin() when it is made, and end() when it goes.
class During {
 public:
  During(void (*begin)(), void (*end)()) : end_(end) {
    if (begin) begin();
  }
  ~During() {
    if (end_) end_();
  }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  void (*end_)();
};

// A moment of a loop that waits for another thread.
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks for what another thread, which is at work, is about to do.  If that takes long, the other one
// may be waiting for a processor: it is given this one.
template <class Condition>
void wait_until(Condition condition) {
  constexpr int kLooks = 1 << 10;
  for (int i = 0; !condition(); ++i) {
    pause();
    if (i >= kLooks) std::this_thread::sleep_for(std::chrono::microseconds(1));
  }
}

// How many threads so much work repays: those of the pool, each with at least `least`, since waking
// a thread takes it about 10 microseconds; without a pool, this one.
int64_t useful_threads(xla::ffi::ThreadPool* pool, double work, int64_t least);

// A call that is at work on several blocks, while this is there.
class AtWork {
 public:
  static std::atomic<int64_t> calls;
  AtWork() { calls.fetch_add(1, std::memory_order_relaxed); }
  ~AtWork() { calls.fetch_sub(1, std::memory_order_relaxed); }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
};

// in_parallel with several threads and several blocks.
void hand_out(xla::ffi::ThreadPool* pool, int64_t threads, int64_t blocks,
              std::function<void(int64_t)> block);

// Calls block(i) for i in [0, blocks), in this thread and in those of XLA's pool that have time, in
// at most `threads` threads in all, fewer where others are at work.
template <class Block>
void in_parallel(xla::ffi::ThreadPool* pool, int64_t threads, int64_t blocks, Block block) {
  if (blocks == 1) return block(0);
  if (threads > 1 && blocks > 1) return hand_out(pool, threads, blocks, std::move(block));
  const AtWork at_work;
  for (int64_t i = 0; i < blocks; ++i) block(i);
}

// The same of several phases, in which there are so many blocks: block(phase, i), when all blocks of
// the phases before are done.  Threads stay awake meanwhile, as waking one takes as long as a short
// phase; they only wait for those that are at work.
template <size_t kPhases, class Block>
void in_phases(xla::ffi::ThreadPool* pool, int64_t threads, const int64_t (&counts)[kPhases],
               Block block) {
  std::array<int64_t, kPhases + 1> first = {};
  std::partial_sum(counts, counts + kPhases, first.begin() + 1);
  std::atomic<int64_t> done{0};
  in_parallel(pool, threads, first.back(), [&](int64_t i) {
    const int64_t phase = std::upper_bound(first.begin(), first.end(), i) - first.begin() - 1;
    wait_until([&] { return done.load() >= first[phase]; });
    block(phase, i - first[phase]);
    ++done;
  });
}

// The same in as many threads as `work` repays.
template <class Block>
void share(xla::ffi::ThreadPool* pool, int64_t blocks, double work, int64_t least, Block block) {
  in_parallel(pool, useful_threads(pool, work, least), blocks, std::move(block));
}

// Blocks of work on matrices: in IEEE arithmetic, `terms` additions in all.
template <class Block>
void share_terms(xla::ffi::ThreadPool* pool, int64_t blocks, double terms, Block block) {
  constexpr int64_t kThread = 1 << 15;  // terms that are worth a thread
  share(pool, blocks, terms, kThread, [=](int64_t i) {
    const IeeeArithmetic ieee;
    block(i);
  });
}

// Calls matrix(i, pool) for i in [0, count), matrices of so many terms each: many matrices in
// parallel and without a pool, few matrices one after the other and each with the pool.
template <class Matrix>
void share_matrices(xla::ffi::ThreadPool* pool, int64_t count, double terms, Matrix matrix) {
  if (count < pool->num_threads()) {
    const IeeeArithmetic ieee;
    for (int64_t i = 0; i < count; ++i) matrix(i, pool);
  } else {
    share_terms(pool, count, terms * count, [=](int64_t i) { matrix(i, nullptr); });
  }
}

// Where memory that is about to be written is fresh, lets the system give it in huge pages: to give
// pages of 4096 bytes one by one takes several times as long as to fill them.
void in_huge_pages(void* data, size_t bytes);

// A result, all of which is about to be written.
template <class Buffer>
auto* written(Buffer& result) {
  in_huge_pages(result->untyped_data(), result->size_bytes());
  return result->typed_data();
}
inline void* written(xla::ffi::Result<xla::ffi::AnyBuffer> result) {
  in_huge_pages(result->untyped_data(), result->size_bytes());
  return result->untyped_data();
}

// Something of this thread, which goes from call to call.  Its address is asked for once: GCC would call
// a function for it at each use, and these calls took a tenth of a small call of a kernel.
template <class Memory>
Memory& of_thread() {
  thread_local Memory memory;
  Memory* at = &memory;
  asm("" : "+r"(at));
  return *at;
}

// The operands and the results of a call, the latter about to be written; in memory of the thread.
inline const std::vector<const void*>& operands_of(const xla::ffi::RemainingArgs& args) {
  auto& operands = of_thread<std::vector<const void*>>();
  operands.clear();
  for (size_t i = 0; i < args.size(); ++i) {
    operands.push_back(args.get<xla::ffi::AnyBuffer>(i)->untyped_data());
  }
  return operands;
}
inline const std::vector<void*>& results_of(const xla::ffi::RemainingRets& rets) {
  auto& results = of_thread<std::vector<void*>>();
  results.clear();
  for (size_t i = 0; i < rets.size(); ++i) {
    results.push_back(written(*rets.get<xla::ffi::AnyBuffer>(i)));
  }
  return results;
}

// Memory of a thread that goes from call to call, since getting it takes as long as a small call,
// and filling fresh pages twice as long as filling these; in lines of the cache.
enum Use { kLeft, kRight, kStaged, kSums, kResults, kOffsets, kBetween, kReflected };
template <Use use, class Element>
struct Scratch {
  std::unique_ptr<char[]> memory;
  int64_t size = 0;
};
template <Use use, class Element>
Element* scratch(int64_t size) {
  constexpr size_t kLine = 64;
  auto& kept = of_thread<Scratch<use, Element>>();
  if (kept.size < size) {
    kept.memory.reset(new char[size * sizeof(Element) + kLine]);
    kept.size = size;
  }
  char* const at = kept.memory.get();
  return reinterpret_cast<Element*>(at + kLine - reinterpret_cast<uintptr_t>(at) % kLine);
}

}  // namespace repjax
