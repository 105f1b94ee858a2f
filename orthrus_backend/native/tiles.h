// The processor's matrix tiles (Intel AMX, bfloat16): permission to use them, and how a thread takes them.
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define HAS_TILES 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

// Asks the kernel for the tiles' state, once a process. Whether they may be used.
inline bool tiles_allowed() {
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return allowed;
}

// What was written before is in memory when tiles are loaded after: the compiler does not know that these read.
inline void written() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// This thread's eight tiles for as long as it lives: 64 bytes in a row, and in the first six so many rows, in the others
// 16. Then they are what they were: oneDNN's products use them too, and may count on what they set.
class Tiles {
 public:
  // No rows: nothing happens.
  explicit Tiles(int rows) : wanted_(rows > 0) {
    if (!wanted_) return;
    Config full;
    full.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      full.bytes[tile] = 64;
      full.rows[tile] = uint8_t(tile < 6 ? rows : 16);
    }
    _tile_storeconfig(&before_);
    written();
    _tile_loadconfig(&full);
  }
  ~Tiles() {
    if (!wanted_) return;
    written();
    _tile_loadconfig(&before_);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 0, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  };
  const bool wanted_;
  Config before_;
};

}  // namespace

#else
#define HAS_TILES 0

namespace {
inline bool tiles_allowed() { return false; }
struct Tiles {
  explicit Tiles(int) {}
};
}  // namespace

#endif
