// Attention of a whole step: its slices in pieces, which threads take as they come.
#pragma once

#include <type_traits>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"

namespace {

#if HAS_TILES

template <int D, class T>
constexpr bool TILED = std::is_same_v<T, bf16> && D % 32 == 0;

// Heads of keys that a decode's piece is about.
template <int D, class T>
int decoded_together(const Attention<T>& attention) {
  if constexpr (TILED<D, T>) return TiledDecode<D>::groups(attention);
  return 1;
}

template <int D, class T>
void attend_tiled(const Attention<T>& attention, const Item& item, int head, int64_t first, int64_t last) {
  if constexpr (TILED<D, T>) {
    if (item.rows == 1 && TiledDecode<D>::fits(attention))
      TiledDecode<D>(attention, item, head).run();
    else
      TiledChunk<D>(attention, item, head, first, last).run();
  }
}

#else

template <int D, class T>
constexpr bool TILED = false;

template <int D, class T>
int decoded_together(const Attention<T>&) {
  return 1;
}

template <int D, class T>
void attend_tiled(const Attention<T>&, const Item&, int, int64_t, int64_t) {}

#endif

template <int D, class T>
void attend_to(const Attention<T>& attention, const Item* items, int64_t count, bool tiles, int threads) {
  tiles = tiles && TILED<D, T>;
  struct Work {
    const Item* item;
    int64_t first, last;
    int head;
  };
  const int64_t tokens = std::max(1, TILE / attention.group());
  const int step = tiles ? decoded_together<D>(attention) : 1;
  std::vector<Work> works;
  for (const Item* item = items; item < items + count; ++item)
    if (item->rows == 1)
      for (int head = 0; head < attention.kv_heads; head += step) works.push_back({item, 0, 1, head});
    else
      for (int64_t last = item->rows; last > 0; last -= std::min(last, tokens))  // the longest first
        for (int head = 0; head < attention.kv_heads; ++head)
          works.push_back({item, std::max<int64_t>(0, last - tokens), last, head});
  const int64_t units = int64_t(works.size());
#pragma omp parallel num_threads(threads) if (units > 1)
  {
    const Tiles mine(tiles ? 16 : 0);
#pragma omp for schedule(dynamic)
    for (int64_t unit = 0; unit < units; ++unit) {
      const Work& work = works[unit];
      if (tiles)
        attend_tiled<D>(attention, *work.item, work.head, work.first, work.last);
      else if (work.item->rows * attention.group() < FEW)
        attention.template few<D>(*work.item, work.head, work.first, work.last);
      else
        attention.template many<D>(*work.item, work.head, work.first, work.last);
    }
  }
}

template <class T>
int attend(T* out, const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value,
           int64_t value_stride, const T* key_cache, const T* value_cache, const int64_t* items, int64_t count,
           const int32_t* blocks, int block_size, int heads, int kv_heads, int dim, int window, float scale,
           float softcap, bool tiles, int threads) {
  const Attention<T> attention{out,    query,  key,      value,      query_stride, key_stride, value_stride,
                               key_cache, value_cache, blocks, block_size, heads, kv_heads, dim, window, scale, softcap};
  if (heads / kv_heads > TILE) return 1;
  tiles = tiles && block_size % 16 == 0 && tiles_allowed();
  const Item* first = reinterpret_cast<const Item*>(items);
  switch (dim) {
    case 16: attend_to<16>(attention, first, count, tiles, threads); return 0;
    case 32: attend_to<32>(attention, first, count, tiles, threads); return 0;
    case 64: attend_to<64>(attention, first, count, tiles, threads); return 0;
    case 80: attend_to<80>(attention, first, count, tiles, threads); return 0;
    case 96: attend_to<96>(attention, first, count, tiles, threads); return 0;
    case 128: attend_to<128>(attention, first, count, tiles, threads); return 0;
    case 256: attend_to<256>(attention, first, count, tiles, threads); return 0;
  }
  return 1;
}

}  // namespace
