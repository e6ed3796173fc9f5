// Fed arrays reach a device in their order, although the host fills the next one while the last is still read, and without waiting for it.

#include "libcore/runtime/input_slots.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "libcore/device/sim_device.h"

namespace galley::test {
namespace {

TEST(InputSlots, TheHostFillsTheNextArrayWhileTheLastIsRead) {
  Device& device = sim_device();
  TensorType type;
  type.dtype = DType::kI64;
  type.shape = Shape{1000};
  const std::unique_ptr<Stream> stream = device.make_stream(), copies = device.make_stream();
  const std::shared_ptr<Storage> to = Storage::allocate(type.bytes(), device);
  constexpr int64_t kArrays = 6;
  std::vector<int64_t> first(kArrays), last(kArrays);
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  {
    InputSlots slots(device, *copies, type);
    sim_enqueue(*stream, [released] { released.wait(); });  // a long step
    for (int64_t i = 0; i < kArrays; ++i) {
      if (i == 2) release.set_value();  // two arrays are on their way before the step ends
      auto* values = slots.next().data_as<int64_t>();
      std::fill(values, values + 1000, 100 + i);
      slots.send(*stream, to->address());
      sim_enqueue(*stream, [&, i] {
        const auto* seen = reinterpret_cast<const int64_t*>(to->address());
        first[static_cast<size_t>(i)] = seen[0];
        last[static_cast<size_t>(i)] = seen[999];
      });
    }
  }
  stream->synchronize();
  for (int64_t i = 0; i < kArrays; ++i) {
    EXPECT_EQ(first[static_cast<size_t>(i)], 100 + i);
    EXPECT_EQ(last[static_cast<size_t>(i)], 100 + i);
  }
}

}  // namespace
}  // namespace galley::test
