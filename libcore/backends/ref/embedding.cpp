#include "libcore/ops/embedding.h"

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

int64_t checked_row(double index, int64_t rows) {
  // Indices are data: a bad one is the input's mistake.
  GALLEY_CHECK_INPUT(index >= 0 && index < static_cast<double>(rows), "[embedding] index ", index, " is outside the table of ", rows, " rows");
  return static_cast<int64_t>(index);
}

void embedding_ref(RefCall& call) {
  const RefArray& weight = call.in(0);
  const RefArray& index = call.in(1);
  const int64_t width = weight.shape[1];
  for (int64_t i = 0; i < index.shape.elements(); ++i) {
    const int64_t row = checked_row(index[i], weight.shape[0]);
    for (int64_t d = 0; d < width; ++d) call.out()[i * width + d] = weight[row * width + d];
  }
}

void embedding_backward_ref(RefCall& call) {
  const RefArray& grad = call.in(0);
  const RefArray& index = call.in(1);
  const int64_t width = grad.shape[-1];
  for (int64_t i = 0; i < index.shape.elements(); ++i) {
    const int64_t row = checked_row(index[i], call.out().shape[0]);
    for (int64_t d = 0; d < width; ++d) call.out()[row * width + d] += grad[i * width + d];
  }
}

constexpr RefEntry kEntries[] = {{"embedding", embedding_ref}, {"embedding_backward", embedding_backward_ref}};

}  // namespace

std::span<const RefEntry> ref_embedding() { return kEntries; }

}  // namespace galley
