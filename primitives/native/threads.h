// Blocks of work for XLA's threads, and memory of a thread.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// Those of the pool, if `least` work repays waking one: that takes it about 10 microseconds.
inline int64_t useful_threads(xla::ffi::ThreadPool* pool, double work, int64_t least) {
  const double useful = std::min<double>(pool->num_threads(), work / least);
  return std::max<int64_t>(1, int64_t(useful));
}

// Calls block(i) for i in [0, blocks), in this thread and in those of XLA's pool that have time,
// at most `threads` in all.  This thread works too, so that it never waits for one that waits
// for it; those that come late find nothing to do.
template <class Block>
void in_parallel(xla::ffi::ThreadPool* pool, int64_t threads, int64_t blocks, Block block) {
  if (threads <= 1 || blocks <= 1) {
    for (int64_t i = 0; i < blocks; ++i) block(i);
    return;
  }
  struct Work {
    explicit Work(Block block, int64_t blocks) : block(std::move(block)), blocks(blocks) {}
    Block block;
    int64_t blocks;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t done = 0;

    void run() {
      int64_t mine = 0;
      for (int64_t i; (i = next.fetch_add(1)) < blocks; ++mine) block(i);
      if (mine == 0) return;
      std::lock_guard<std::mutex> lock(mutex);
      done += mine;
      if (done == blocks) all_done.notify_all();
    }
  };
  auto work = std::make_shared<Work>(std::move(block), blocks);
  for (int64_t i = 1; i < threads && i < blocks; ++i) pool->Schedule([work] { work->run(); });
  work->run();
  std::unique_lock<std::mutex> lock(work->mutex);
  work->all_done.wait(lock, [&] { return work->done == blocks; });
}

// Memory of a thread that goes from call to call, since getting it takes as long as a small call, and
// fresh pages as long as filling them; in lines of the cache.
enum Use { kLeft, kRight, kStaged, kSums, kResults, kOffsets, kBetween, kReflected };
template <Use use, class Element>
Element* scratch(int64_t size) {
  constexpr size_t kLine = 64;
  thread_local std::unique_ptr<char[]> memory;
  thread_local int64_t kept = 0;
  if (kept < size) {
    memory.reset(new char[size * sizeof(Element) + kLine]);
    kept = size;
  }
  char* const at = memory.get();
  return reinterpret_cast<Element*>(at + kLine - reinterpret_cast<uintptr_t>(at) % kLine);
}

}  // namespace repjax
