#include "libcore/ops/norm.h"

#include <cmath>

#include "libcore/backends/ref/ref.h"
#include "libcore/ops/elementwise.h"

namespace galley {
namespace {

double value_or(const RefCall& call, size_t input, int64_t i, double otherwise) { return call.has(input) ? call.in(input)[i] : otherwise; }

struct Moments {
  double mean = 0, var = 0;  // biased; 0 of nothing
};
/// Of the elements that `index(j)`, j < count, names.
template <class Index>
Moments moments(const RefArray& x, int64_t count, Index index) {
  Moments m;
  if (count == 0) return m;
  for (int64_t j = 0; j < count; ++j) m.mean += x[index(j)];
  m.mean /= static_cast<double>(count);
  for (int64_t j = 0; j < count; ++j) m.var += (x[index(j)] - m.mean) * (x[index(j)] - m.mean);
  m.var /= static_cast<double>(count);
  return m;
}

/// x [N,C,...]: the elements of one channel are (n, s), s < inner.
struct Channels {
  explicit Channels(const Shape& x) : channels(x[1]), batch(x[0]) {
    for (int axis = 2; axis < x.rank(); ++axis) inner *= x[axis];
  }
  int64_t channels, batch, inner = 1;
  int64_t count() const { return batch * inner; }
  int64_t index(int64_t c, int64_t j) const { return (j / inner * channels + c) * inner + j % inner; }
};

void batch_norm_ref(RefCall& call) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const RefArray& x = call.in(0);
  const Channels at(x.shape);
  for (int64_t c = 0; c < at.channels; ++c) {
    const Moments m = moments(x, at.count(), [&](int64_t j) { return at.index(c, j); });
    call.out(1)[c] = m.mean;
    call.out(2)[c] = m.var;
    for (int64_t j = 0; j < at.count(); ++j) {
      const int64_t i = at.index(c, j);
      const double y = value_or(call, 1, c, 1) * (x[i] - m.mean) / std::sqrt(m.var + attrs.eps) + value_or(call, 2, c, 0) + value_or(call, 3, i, 0);
      call.out(0)[i] = activate(attrs.activation, y);
    }
  }
}

void batch_norm_backward_ref(RefCall& call) {
  const auto& attrs = call.attrs<BatchNormBackwardAttrs>();
  const RefArray &grad = call.in(0), &x = call.in(1);
  const Channels at(x.shape);
  const auto count = static_cast<double>(at.count());
  for (int64_t c = 0; c < at.channels; ++c) {
    const double mean = call.in(2)[c], rstd = 1 / std::sqrt(call.in(3)[c] + attrs.eps);
    const auto masked = [&](int64_t i) {
      // A positive result of relu stands for its argument.
      const double z = call.has(6) ? call.in(6)[i] : value_or(call, 4, c, 1) * (x[i] - mean) * rstd + value_or(call, 5, c, 0);
      const double pixels = static_cast<double>(at.inner);
      const double g = call.has(7) ? grad[i] * call.in(7)[i / at.inner] + call.in(8)[i / at.inner] / pixels : grad[i];
      return g * activation_slope(attrs.activation, z);
    };
    double dgamma = 0, dbeta = 0;
    for (int64_t j = 0; j < at.count(); ++j) {
      const int64_t i = at.index(c, j);
      dbeta += masked(i);
      dgamma += masked(i) * (x[i] - mean) * rstd;
    }
    call.out(1)[c] = dgamma;
    call.out(2)[c] = dbeta;
    for (int64_t j = 0; j < at.count(); ++j) {
      const int64_t i = at.index(c, j);
      const double normal = (x[i] - mean) * rstd;
      call.out(0)[i] = value_or(call, 4, c, 1) * rstd * (masked(i) - dbeta / count - normal * dgamma / count);
      if (attrs.residual) call.out(3)[i] = masked(i);
    }
  }
}

void batch_norm_inference_ref(RefCall& call) {
  const auto& attrs = call.attrs<BatchNormInferenceAttrs>();
  const RefArray& x = call.in(0);
  const Channels at(x.shape);
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    const int64_t c = i / at.inner % at.channels;
    const double normal = (x[i] - call.in(3)[c]) / std::sqrt(call.in(4)[c] + attrs.eps);
    call.out()[i] = activate(attrs.activation, value_or(call, 1, c, 1) * normal + value_or(call, 2, c, 0));
  }
}

void batch_norm_update_ref(RefCall& call) {
  const auto& attrs = call.attrs<BatchNormUpdateAttrs>();
  // The unbiased variance of one value is undefined (PyTorch refuses such a batch); it is taken as the biased one, which is 0.
  const double correction = attrs.count > 1 ? static_cast<double>(attrs.count) / static_cast<double>(attrs.count - 1) : 1;
  for (int64_t c = 0; c < call.in(0).shape[0]; ++c) {
    call.out(0)[c] = (1 - attrs.momentum) * call.in(0)[c] + attrs.momentum * call.in(2)[c];
    call.out(1)[c] = (1 - attrs.momentum) * call.in(1)[c] + attrs.momentum * call.in(3)[c] * correction;
  }
  if (call.has(4)) call.out(2)[0] = call.in(4)[0] + 1;
}

void layer_norm_ref(RefCall& call) {
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const RefArray& x = call.in(0);
  const int64_t rows = call.out(1).shape.elements(), width = rows == 0 ? 0 : x.shape.elements() / rows;
  for (int64_t r = 0; r < rows; ++r) {
    const Moments m = moments(x, width, [&](int64_t j) { return r * width + j; });
    const double rstd = 1 / std::sqrt(m.var + attrs.eps);
    call.out(1)[r] = m.mean;
    call.out(2)[r] = rstd;
    for (int64_t j = 0; j < width; ++j) {
      call.out(0)[r * width + j] = (x[r * width + j] - m.mean) * rstd * value_or(call, 1, j, 1) + value_or(call, 2, j, 0);
    }
  }
}

/// Backward of y = gamma (x - mean) rstd + beta for one set of `count` elements that share mean and rstd; `channel(j)` is the index of an
/// element's gamma.
template <class Index, class Channel>
void normal_backward(RefCall& call, double mean, double rstd, int64_t count, Index index, Channel channel) {
  const RefArray &grad = call.in(0), &x = call.in(1);
  double sum = 0, sum_normal = 0;  // of d = gamma grad, and of d normal
  for (int64_t j = 0; j < count; ++j) {
    const double normal = (x[index(j)] - mean) * rstd, d = grad[index(j)] * value_or(call, 4, channel(j), 1);
    sum += d;
    sum_normal += d * normal;
    call.out(1)[channel(j)] += grad[index(j)] * normal;
    call.out(2)[channel(j)] += grad[index(j)];
  }
  for (int64_t j = 0; j < count; ++j) {
    const double normal = (x[index(j)] - mean) * rstd, d = grad[index(j)] * value_or(call, 4, channel(j), 1);
    call.out(0)[index(j)] = rstd * (d - (sum + normal * sum_normal) / static_cast<double>(count));
  }
}

void layer_norm_backward_ref(RefCall& call) {
  const RefArray& x = call.in(1);
  const int64_t width = call.out(1).shape.elements(), rows = width == 0 ? 0 : x.shape.elements() / width;
  for (int64_t r = 0; r < rows; ++r) {
    normal_backward(call, call.in(2)[r], call.in(3)[r], width, [&](int64_t j) { return r * width + j; }, [](int64_t j) { return j; });
  }
}

/// The elements of a sample's group lie side by side: [N,G,width].
void group_norm_ref(RefCall& call) {
  const auto& attrs = call.attrs<GroupNormAttrs>();
  const RefArray& x = call.in(0);
  const Channels at(x.shape);
  const int64_t width = at.channels / attrs.groups * at.inner;
  for (int64_t r = 0; r < at.batch * attrs.groups; ++r) {
    const Moments m = moments(x, width, [&](int64_t j) { return r * width + j; });
    const double rstd = 1 / std::sqrt(m.var + attrs.eps);
    call.out(1)[r] = m.mean;
    call.out(2)[r] = rstd;
    for (int64_t j = 0; j < width; ++j) {
      const int64_t i = r * width + j, c = i / at.inner % at.channels;
      call.out(0)[i] = (x[i] - m.mean) * rstd * value_or(call, 1, c, 1) + value_or(call, 2, c, 0);
    }
  }
}

void group_norm_backward_ref(RefCall& call) {
  const int64_t groups = call.attrs<GroupNormBackwardAttrs>().groups;
  const Channels at(call.in(1).shape);
  const int64_t width = at.channels / groups * at.inner;
  for (int64_t r = 0; r < at.batch * groups; ++r) {
    normal_backward(call, call.in(2)[r], call.in(3)[r], width, [&](int64_t j) { return r * width + j; },
                    [&](int64_t j) { return (r * width + j) / at.inner % at.channels; });
  }
}

constexpr RefEntry kEntries[] = {
    {"batch_norm", batch_norm_ref},
    {"batch_norm_backward", batch_norm_backward_ref},
    {"batch_norm_inference", batch_norm_inference_ref},
    {"batch_norm_update", batch_norm_update_ref},
    {"layer_norm", layer_norm_ref},
    {"layer_norm_backward", layer_norm_backward_ref},
    {"group_norm", group_norm_ref},
    {"group_norm_backward", group_norm_backward_ref},
};

}  // namespace

std::span<const RefEntry> ref_norm() { return kEntries; }

}  // namespace galley
