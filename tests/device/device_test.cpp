// Laws of every device, on the host and the sim device; and the checks of the sim device, which detects host reads of device memory and
// missing events.

#include "libcore/device/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/device/kept_memory.h"
#include "libcore/device/sim_device.h"

namespace galley {
namespace {

/// Memory during a test.
class Block {
 public:
  Block(Memory& memory, int64_t bytes, int64_t alignment = 64)
      : memory_(memory), bytes_(bytes), alignment_(alignment), address_(memory.allocate(bytes, alignment)) {}
  ~Block() { memory_.free(address_, bytes_, alignment_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* address() const { return address_; }

 private:
  Memory& memory_;
  int64_t bytes_, alignment_;
  void* address_;
};

/// Work that waits until the test lets it run.
class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class Devices : public testing::TestWithParam<Device& (*)()> {
 protected:
  Device& device() { return GetParam()(); }
};
INSTANTIATE_TEST_SUITE_P(All, Devices, testing::Values(host_device, sim_device),
                         [](const auto& info) { return std::string(info.param().name()); });

TEST_P(Devices, CopiesThereAndBack) {
  const std::unique_ptr<Stream> stream = device().make_stream();
  for (const int64_t bytes : {1, 63, 4096, 3 << 20}) {
    const Block there(device().memory(), bytes), other(device().memory(), bytes);
    std::vector<unsigned char> given(static_cast<size_t>(bytes)), back(given.size());
    for (size_t i = 0; i < given.size(); ++i) given[i] = static_cast<unsigned char>(i * 7 + 1);
    stream->copy(there.address(), given.data(), bytes);
    const std::vector<unsigned char> want = given;
    std::fill(given.begin(), given.end(), 0);  // memory that is not pinned may be reused at once
    stream->copy(other.address(), there.address(), bytes);
    stream->copy(back.data(), other.address(), bytes);
    EXPECT_EQ(back, want) << "a copy to memory that is not pinned has run on return";
    stream->fill(there.address(), 0x5A, bytes);
    stream->copy(back.data(), there.address(), bytes);
    EXPECT_EQ(back, std::vector<unsigned char>(back.size(), 0x5A));
  }
}

TEST_P(Devices, AlignsAndReusesMemory) {
  Memory& memory = device().memory();
  for (const int64_t alignment : {64, 4096, 2 << 20}) {
    const Block first(memory, 100, alignment), second(memory, 3 * alignment + 1, alignment);
    for (const Block* block : {&first, &second})
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block->address()) % static_cast<uintptr_t>(alignment), 0u);
  }
  // 100 GiB in all, of which 1 GiB is in use at a time.
  for (int i = 0; i < 100; ++i) {
    void* address = memory.allocate(int64_t{1} << 30, 4096);
    ASSERT_NE(address, nullptr);
    memory.free(address, int64_t{1} << 30, 4096);
  }
}

TEST(KeptArrays, LieInHugePages) {
  constexpr int64_t kHugePage = int64_t{2} << 20, kSmall = 700'000;
  Memory& memory = device_of_kept_arrays(host_device()).memory();
  const auto place = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(kHugePage); };
  std::vector<std::pair<std::byte*, int64_t>> arrays;
  const auto allocate = [&](int64_t bytes) {
    auto* address = static_cast<std::byte*>(memory.allocate(bytes, 64));
    std::fill_n(address, bytes, static_cast<std::byte>(arrays.size() + 1));
    arrays.emplace_back(address, bytes);
    return address;
  };
  EXPECT_EQ(place(allocate(kHugePage + 4097)), 0u);
  {
    const KeptArrays side_by_side(host_device(), 4 * kept_bytes(kSmall));
    std::byte* first = allocate(kSmall);
    EXPECT_EQ(place(first), 0u);
    for (int i = 1; i < 4; ++i) EXPECT_EQ(allocate(kSmall), first + i * kept_bytes(kSmall));
    allocate(kSmall);  // more than was announced
    allocate(100);
  }
  allocate(kSmall);
  // Each array keeps its values while others are freed.
  for (size_t i = 0; i < arrays.size(); ++i) {
    const auto [address, bytes] = arrays[i];
    EXPECT_EQ(std::count(address, address + bytes, static_cast<std::byte>(i + 1)), bytes) << i;
    memory.free(address, bytes, 64);
  }
  EXPECT_EQ(&device_of_kept_arrays(sim_device()), &sim_device());
}

TEST_P(Devices, EventsOrderStreamsAndTellTime) {
  const std::unique_ptr<Stream> first = device().make_stream(), second = device().make_stream();
  const std::unique_ptr<Event> begin = device().make_event(), end = device().make_event();
  EXPECT_TRUE(begin->done()) << "never recorded";
  EXPECT_EQ(begin->time_ns(), 0);
  second->wait(*begin);  // an event that was never recorded does not block
  const Block block(device().memory(), 64);
  first->record(*begin);
  first->fill(block.address(), 1, 64);
  first->record(*end);
  second->wait(*end);
  second->fill(block.address(), 2, 64);
  second->synchronize();
  EXPECT_TRUE(end->done());
  EXPECT_LE(begin->time_ns(), end->time_ns());
  EXPECT_GT(begin->time_ns(), 0);
  unsigned char byte = 0;
  second->copy(&byte, block.address(), 1);
  EXPECT_EQ(byte, 2);
}

TEST_P(Devices, EventsOfAnotherDeviceAreRefused) {
  Device& other = device().is_host() ? sim_device() : host_device();
  const std::unique_ptr<Event> event = other.make_event();
  EXPECT_THROW(device().stream().record(*event), InternalError);
  EXPECT_THROW(device().stream().wait(*event), InternalError);
}

TEST(SimDevice, RunsWhileTheHostGoesOn) {
  const std::unique_ptr<Stream> stream = sim_device().make_stream();
  const std::unique_ptr<Event> event = sim_device().make_event();
  const Block from(sim_device().host_memory(), 64), to(sim_device().memory(), 64);
  Latch latch;
  std::atomic<int> ran{0};
  sim_enqueue(*stream, [&] { latch.wait(); });
  sim_enqueue(*stream, [&] { ++ran; });
  stream->copy(to.address(), from.address(), 64);  // pinned: enqueued
  stream->record(*event);
  EXPECT_FALSE(event->done());
  EXPECT_EQ(ran, 0);
  latch.open();
  event->synchronize();
  EXPECT_EQ(ran, 1);
}

TEST(SimDevice, ErrorsSurfaceAtTheNextSynchronize) {
  const std::unique_ptr<Stream> stream = sim_device().make_stream(), other = sim_device().make_stream();
  const std::unique_ptr<Event> event = sim_device().make_event();
  bool dropped = true;
  sim_enqueue(*stream, [] { throw std::runtime_error("first"); });
  sim_enqueue(*stream, [&] {
    dropped = false;
    throw std::runtime_error("second");
  });
  stream->record(*event);
  event->synchronize();  // the event was reached, and does not report the error
  other->synchronize();
  try {
    stream->synchronize();
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_TRUE(dropped);
  stream->synchronize();  // the error is reported once
  bool runs = false;
  sim_enqueue(*stream, [&] { runs = true; });
  stream->synchronize();
  EXPECT_TRUE(runs);
}

/// The value that a second stream reads from memory that the first writes after a delay; with or without an event that orders them.
unsigned char read_across_streams(bool with_event) {
  const std::unique_ptr<Stream> writer = sim_device().make_stream(), reader = sim_device().make_stream();
  const std::unique_ptr<Event> written = sim_device().make_event();
  const Block block(sim_device().memory(), 64), result(sim_device().host_memory(), 64);
  writer->fill(block.address(), 1, 64);
  writer->synchronize();
  Latch latch;
  sim_enqueue(*writer, [&] { latch.wait(); });
  writer->fill(block.address(), 2, 64);
  writer->record(*written);
  if (with_event) reader->wait(*written);
  reader->copy(result.address(), block.address(), 64);
  if (!with_event) reader->synchronize();  // does not wait for the writer
  latch.open();
  reader->synchronize();
  writer->synchronize();
  return *static_cast<unsigned char*>(result.address());
}

TEST(SimDevice, FindsAMissingEvent) {
  EXPECT_EQ(read_across_streams(true), 2);
  EXPECT_EQ(read_across_streams(false), 1) << "streams without an event are not ordered";
}

TEST(SimDeviceDeathTest, FindsAHostReadAndAHostWrite) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto touch = [](bool write) {
    std::signal(SIGSEGV, SIG_DFL);  // sanitizers would end the process in their own way
    const Block block(sim_device().memory(), 64);
    sim_device().stream().fill(block.address(), 1, 64);
    sim_device().stream().synchronize();
    volatile auto* byte = static_cast<volatile unsigned char*>(block.address());
    if (write) *byte = 1;
    std::fprintf(stderr, "read %d\n", *byte);
  };
  EXPECT_EXIT(touch(false), testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(touch(true), testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace galley
