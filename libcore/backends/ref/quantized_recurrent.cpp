#include "libcore/ops/quantized_recurrent.h"

#include <algorithm>
#include <cmath>

#include "libcore/backends/ref/ref.h"

namespace galley {
namespace {

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

/// One layer. The state is a float32 value at each step, as kernels keep it: its integers depend on that.
struct Layer {
  Layer(RefCall& c, bool backwards, Saturation range)
      : call(c), batch(c.in(0).shape[0]), steps(c.in(0).shape[1]), hidden(c.in(1).shape[1]), width(c.in(1).shape[0]), reverse(backwards), saturation(range) {
    h = state(4);
  }
  int64_t at(int64_t turn) const { return reverse ? steps - 1 - turn : turn; }
  std::vector<double> state(size_t input) const {
    std::vector<double> values(static_cast<size_t>(batch * hidden));
    for (int64_t i = 0; call.has(input) && i < batch * hidden; ++i) values[static_cast<size_t>(i)] = call.in(input)[i];
    return values;
  }

  /// W_hh h + b_hh of the whole batch, [batch, width], h in integers of its own range. A value that is not finite makes every result NaN.
  std::vector<double> of_state() const {
    std::vector<double> result(static_cast<size_t>(batch * width), std::nan(""));
    if (!std::all_of(h.begin(), h.end(), [](double value) { return std::isfinite(value); })) return result;
    QuantParams params;
    if (!h.empty()) params = affine_params(*std::min_element(h.begin(), h.end()), *std::max_element(h.begin(), h.end()), quant_range(QuantDType::kUint8, saturation == Saturation::kReduced));
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t row = 0; row < width; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          sum += static_cast<double>(quantize_value(static_cast<float>(h[static_cast<size_t>(n * hidden + k)]), params) - params.zero_point) * call.in(1)[row * hidden + k];
        }
        result[static_cast<size_t>(n * width + row)] = sum * (params.scale * call.in(2)[row]) + (call.has(3) ? call.in(3)[row] : 0);
      }
    }
    return result;
  }
  /// Calls cell(n, u, x, q) for each unit: x(gate) of the input's part, q(gate) of the state's; it returns the new h.
  template <class Cell>
  void run(const Cell& cell) {
    for (int64_t turn = 0; turn < steps; ++turn) {
      const int64_t t = at(turn);
      const std::vector<double> products = of_state();
      for (int64_t n = 0; n < batch; ++n) {
        for (int64_t u = 0; u < hidden; ++u) {
          const auto x = [&](int64_t gate) { return call.in(0)[(n * steps + t) * width + gate * hidden + u]; };
          const auto q = [&](int64_t gate) { return products[static_cast<size_t>(n * width + gate * hidden + u)]; };
          double& value = h[static_cast<size_t>(n * hidden + u)];
          value = static_cast<float>(cell(n * hidden + u, value, x, q));
          call.out(0)[(n * steps + t) * hidden + u] = value;
        }
      }
    }
    for (size_t i = 0; i < h.size(); ++i) call.out(1)[static_cast<int64_t>(i)] = h[i];
  }

  RefCall& call;
  int64_t batch, steps, hidden, width;
  bool reverse;
  Saturation saturation;
  std::vector<double> h;
};

void dynamic_quantized_lstm_ref(RefCall& call) {
  const auto& attrs = call.attrs<DynamicQuantizedRecurrentAttrs>();
  Layer layer(call, attrs.reverse, attrs.saturation);
  std::vector<double> c = layer.state(5);
  layer.run([&](int64_t i, double, const auto& x, const auto& q) {
    double& cell = c[static_cast<size_t>(i)];
    cell = sigmoid_of(x(1) + q(1)) * cell + sigmoid_of(x(0) + q(0)) * std::tanh(x(2) + q(2));
    return sigmoid_of(x(3) + q(3)) * std::tanh(cell);
  });
  for (size_t i = 0; i < c.size(); ++i) call.out(2)[static_cast<int64_t>(i)] = c[i];
}

void dynamic_quantized_gru_ref(RefCall& call) {
  const auto& attrs = call.attrs<DynamicQuantizedRecurrentAttrs>();
  Layer(call, attrs.reverse, attrs.saturation).run([](int64_t, double h, const auto& x, const auto& q) {
    const double r = sigmoid_of(x(0) + q(0)), z = sigmoid_of(x(1) + q(1)), n = std::tanh(x(2) + r * q(2));
    return (1 - z) * n + z * h;
  });
}

void dynamic_quantized_rnn_ref(RefCall& call) {
  const auto& attrs = call.attrs<DynamicQuantizedRnnAttrs>();
  const bool tanh = attrs.nonlinearity == Nonlinearity::kTanh;
  Layer(call, attrs.reverse, attrs.saturation).run([tanh](int64_t, double, const auto& x, const auto& q) {
    const double a = x(0) + q(0);
    return tanh ? std::tanh(a) : a < 0 ? 0 : a;  // NaN stays
  });
}

constexpr RefEntry kEntries[] = {{"dynamic_quantized_lstm", dynamic_quantized_lstm_ref}, {"dynamic_quantized_gru", dynamic_quantized_gru_ref}, {"dynamic_quantized_rnn", dynamic_quantized_rnn_ref}};

}  // namespace

std::span<const RefEntry> ref_quantized_recurrent() { return kEntries; }

}  // namespace galley
