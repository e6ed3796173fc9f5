// The CUDA device over the stand-in driver: laws of devices, and errors of the driver.

#include "libcore/backends/cuda/device.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include "libcore/base/error.h"
#include "tests/backends/cuda/stand_in.h"

namespace galley::test {
namespace {

TEST(CudaDevice, CopiesThereAndBack) {
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> stream = device.make_stream();
  for (const int64_t bytes : {int64_t{1}, int64_t{1000}, int64_t{1} << 20}) {
    std::vector<uint8_t> from(static_cast<size_t>(bytes)), to(from.size());
    std::iota(from.begin(), from.end(), uint8_t{3});
    void* block = device.memory().allocate(bytes, 256);
    void* pinned = device.host_memory().allocate(bytes, 64);
    stream->copy(block, from.data(), bytes);
    stream->copy(pinned, block, bytes);
    stream->fill(block, 9, bytes);
    stream->copy(to.data(), pinned, bytes);
    EXPECT_EQ(to, from);
    stream->copy(to.data(), block, bytes);
    EXPECT_EQ(to, std::vector<uint8_t>(from.size(), 9));
    device.memory().free(block, bytes, 256);
    device.host_memory().free(pinned, bytes, 64);
  }
}

TEST(CudaDevice, CountsTheMostMemoryInUse) {
  Memory& memory = stand_in_device().memory();
  memory.reset_peak();
  const int64_t before = memory.peak_bytes();
  void* first = memory.allocate(3000, 256);
  void* second = memory.allocate(5000, 256);
  memory.free(first, 3000, 256);
  EXPECT_EQ(memory.peak_bytes() - before, 8000);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes() - before, 5000);
  memory.free(second, 5000, 256);
  EXPECT_EQ(memory.peak_bytes() - before, 5000);
  EXPECT_EQ(stand_in_device().host_memory().peak_bytes(), 0);
}

TEST(CudaDevice, AlignsMemory) {
  CudaDevice& device = stand_in_device();
  for (const int64_t alignment : {64, 256, 4096, 2 << 20}) {
    void* block = device.memory().allocate(100, alignment);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % static_cast<uintptr_t>(alignment), 0u);
    device.memory().free(block, 100, alignment);
  }
}

TEST(CudaDevice, EventsOrderStreamsAndTellTime) {
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> first = device.make_stream(), second = device.make_stream();
  const std::unique_ptr<Event> begin = device.make_event(), end = device.make_event();
  EXPECT_TRUE(begin->done());
  EXPECT_EQ(begin->time_ns(), 0);
  constexpr int64_t kBytes = 1 << 22;
  void* block = device.memory().allocate(kBytes, 256);
  first->record(*begin);
  for (int i = 0; i < 20; ++i) first->fill(block, static_cast<uint8_t>(i), kBytes);
  first->record(*end);
  second->wait(*end);
  std::vector<uint8_t> read(kBytes);
  second->copy(read.data(), block, kBytes);
  EXPECT_EQ(read, std::vector<uint8_t>(kBytes, 19));
  EXPECT_TRUE(end->done());
  EXPECT_GT(end->time_ns(), begin->time_ns());
  device.memory().free(block, kBytes, 256);
}

TEST(CudaDevice, EventsThatNothingWaitsForAreCounted) {
  if (on_gpu()) GTEST_SKIP() << "events are counted by the stand-in driver";
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> first = device.make_stream(), second = device.make_stream();
  std::unique_ptr<Event> event = device.make_event();
  const int64_t before = stand_in_missed_events();
  for (const auto& wait :
       {std::function<void()>([&] { second->wait(*event); }), {[&] { event->synchronize(); }}, {[&] { event->time_ns(); }}}) {
    first->record(*event);
    wait();
  }
  first->record(*event);
  first->synchronize();
  while (!event->done()) continue;
  EXPECT_EQ(stand_in_missed_events(), before);
  first->record(*event);
  first->record(*event);
  EXPECT_EQ(stand_in_missed_events(), before + 1) << "recorded again";
  event.reset();
  EXPECT_EQ(stand_in_missed_events(), before + 2) << "destroyed";
}

TEST(CudaDevice, EventsOfAnotherDeviceAreRefused) {
  const std::unique_ptr<Event> event = host_device().make_event();
  EXPECT_THROW(stand_in_device().stream().record(*event), InternalError);
  EXPECT_THROW(stand_in_device().stream().wait(*event), InternalError);
}

TEST(CudaDevice, ReportsErrorsOfTheDriver) {
  if (on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in driver";
  CudaDevice& device = stand_in_device();
  const std::unique_ptr<Stream> stream = device.make_stream();
  fail_stand_in("cuMemAlloc", 1, cuda::kOutOfMemory);
  EXPECT_EQ(device.memory().allocate(64, 64), nullptr);
  void* block = device.memory().allocate(64, 64);
  ASSERT_NE(block, nullptr);
  fail_stand_in("cuMemsetD8Async", 1, 719);
  EXPECT_EQ(message_of([&] { stream->fill(block, 1, 64); }),
            "CUDA: filling memory: unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED 719)");
  fail_stand_in("cuStreamSynchronize", 1, 700);
  EXPECT_EQ(message_of([&] { stream->synchronize(); }), "CUDA: running the kernels of a stream: an error of the stand-in (CUDA_ERROR 700)");
  device.memory().free(block, 64, 64);
}

TEST(CudaDevice, NamesAMissingGpu) {
  stand_in_device();
  const std::string message = message_of([] { cuda_device(99); });
  EXPECT_EQ(message.substr(0, message.find(':', 12)), "device cuda:99 does not exist") << message;
}

}  // namespace
}  // namespace galley::test
