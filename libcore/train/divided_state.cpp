#include "libcore/train/divided_state.h"

#include "libcore/comm/communicator.h"

namespace galley {
namespace {

constexpr int64_t kNoMore = -1;

}  // namespace

Tensor WholeArrays::request(int64_t array) {
  ranks_.broadcast("state", &array, 1, DType::kI64, 0);
  return give(array);
}

void WholeArrays::serve() {
  if (!serves_) return;
  for (;;) {
    int64_t array = kNoMore;
    ranks_.broadcast("state", &array, 1, DType::kI64, 0);
    if (array == kNoMore) break;
    give(array);
  }
  forget();
}

void WholeArrays::finish() {
  int64_t end = kNoMore;
  ranks_.broadcast("state", &end, 1, DType::kI64, 0);
  forget();
}

}  // namespace galley
