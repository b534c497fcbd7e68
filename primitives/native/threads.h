// Blocks of work for XLA's threads.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace repjax {

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

}  // namespace repjax
