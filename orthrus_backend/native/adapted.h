// Low-rank adapters in the products of a decoder: what an adapter adds to a product is a second, narrow product into the
// same sums, before they are rounded or gated.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "products.h"

#if HAS_TILES
namespace {

// The layout of these structures is that of `fused/adapted.py`.
struct Factors {
  Weights a, b;  // a: depth of the product to ranks; b: ranks to its columns, in the order of its own weight; null: none
};

struct AdapterOfStep {
  const Factors* factors;  // four for each layer: of qkv, output, gate_up and down
  const int64_t* rows;     // first and last + 1 of each stretch of rows, in order
  int64_t stretches;
};

class Adapted {
 public:
  Adapted(const AdapterOfStep* adapters, int64_t count, int64_t rows, int threads)
      : adapters(adapters), count(count), rows(rows), threads(threads) {
    for (const AdapterOfStep* adapter = adapters; adapter < adapters + count; ++adapter) between.emplace_back();
  }

  // What is to be added to product `number` of all (four for each layer), whose rows are `x`; null: nothing.
  const std::vector<Addition>* additions(int64_t number, const bf16* x, int64_t stride) {
    found.clear();
    for (int64_t i = 0; i < count; ++i) {
      const AdapterOfStep& adapter = adapters[i];
      const Factors& factors = adapter.factors[number];
      if (!factors.a.weight) continue;
      const int64_t width = factors.b.depth, first = adapter.rows[0], last = adapter.rows[2 * adapter.stretches - 1];
      bf16* inner = zeros(between[i], width);
      for (int64_t stretch = 0; stretch < adapter.stretches; ++stretch) {
        const int64_t from = adapter.rows[2 * stretch], to = adapter.rows[2 * stretch + 1];
        multiply(inner + from * width, x + from * stride, stride, to - from, factors.a, threads);
      }
      found.push_back({inner, factors.b.weight, width / DEPTH, first, last});
    }
    return found.empty() ? nullptr : &found;
  }

 private:
  // Rows between both factors, [rows, width]. Those of others are never written: zeros stay while the width does.
  struct Between {
    std::unique_ptr<bf16[]> numbers;
    int64_t width = 0, size = 0;
  };
  bf16* zeros(Between& own, int64_t width) const {
    if (width == own.width) return own.numbers.get();
    if (rows * width > own.size) {
      own.size = rows * width;
      own.numbers.reset(new bf16[own.size]);
    }
    own.width = width;
    std::fill_n(own.numbers.get(), rows * width, bf16{});
    return own.numbers.get();
  }

  const AdapterOfStep* adapters;
  const int64_t count, rows;
  const int threads;
  std::vector<Between> between;
  std::vector<Addition> found;
};

}  // namespace
#endif
