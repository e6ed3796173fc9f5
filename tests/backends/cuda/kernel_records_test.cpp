// Kernels as CUPTI records them, by its stand-in, which learns of what the stand-in driver runs.

#include "libcore/backends/kernel_records.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "libcore/backends/cuda/kernels.h"
#include "libcore/backends/cuda/kernels/calls.h"
#include "libcore/tensor/tensor.h"
#include "libcore/vendor/cuda/cupti.h"
#include "tests/backends/cuda/stand_in.h"

namespace galley::test {
namespace {

void launch_fill(Device& device, void* to, int64_t count) { cuda_launch(device.stream(), "fill_4", 1, device::FillCall{to, count, 0}); }

TEST(CudaKernelRecords, NameEachKernelAndItsRegion) {
  CudaDevice& device = stand_in_device();
  std::string why = "unset";
  const std::unique_ptr<KernelRecords> records = record_kernels(device, why);
  if (on_gpu() && records == nullptr) GTEST_SKIP() << why;
  ASSERT_NE(records, nullptr) << why;
  EXPECT_EQ(why, "");
  EXPECT_EQ(records->source().rfind("CUPTI 13.", 0), 0u) << records->source();
  EXPECT_EQ(record_kernels(host_device(), why), nullptr);
  EXPECT_EQ(why, "") << "the host runs kernels when they are enqueued";
  const auto memory = Storage::allocate(4096, device), host = Storage::allocate_host(4096, device);
  constexpr int64_t kRegions = 6000;  // more than a buffer holds
  for (int round = 0; round < 2; ++round) {
    launch_fill(device, memory->address(), 16);  // of no region
    for (int64_t region = 0; region < (round == 0 ? 3 : kRegions); ++region) {
      records->enter(region);
      for (int64_t k = 0; k <= region % 2; ++k) launch_fill(device, memory->address(), 16);
      records->leave();
    }
    device.stream().copy(memory->address(), host->address(), 4096);
    device.stream().synchronize();
    std::map<int64_t, int64_t> kernels;
    int64_t copies = 0, last = 0;
    for (const KernelRecord& record : records->take()) {
      EXPECT_GE(record.begin_ns, last) << "sorted";
      EXPECT_GE(record.end_ns, record.begin_ns);
      last = record.begin_ns;
      if (record.is_copy) {
        EXPECT_EQ(record.name, "copy to the device, 4 KiB");
        ++copies;
      } else {
        EXPECT_EQ(record.name, "fill_4");
        ++kernels[record.region];
      }
    }
    EXPECT_EQ(copies, 1);
    ASSERT_EQ(std::ssize(kernels), (round == 0 ? 3 : kRegions) + 1);
    for (const auto& [region, count] : kernels) EXPECT_EQ(count, region == -1 ? 1 : 1 + region % 2) << region;
  }
  EXPECT_TRUE(records->take().empty());
}

TEST(CudaKernelRecords, SayWhyThereAreNone) {
  stand_in_device();
  if (on_gpu()) GTEST_SKIP() << "errors are injected into the stand-in";
  fail_stand_in("cuptiActivityEnable", 2, 35);
  std::string why;
  EXPECT_EQ(record_kernels(stand_in_device(), why), nullptr);
  EXPECT_EQ(why, "CUPTI refuses the recording of kernels: an error of the stand-in (35)");
  const cuda::cupti::Cupti missing = cuda::cupti::open_cupti({"/nowhere"});
  EXPECT_EQ(missing.state.problem,
            "CUPTI was not found (libcupti.so.13, searched /nowhere); install version 13 (pip install nvidia-cuda-cupti), or name its "
            "folder by GALLEY_CUDA_LIBRARIES");
}

// The list of functions, held against NVIDIA's library where it is installed.
TEST(CudaKernelRecords, TheInstalledLibraryHasAllFunctions) {
  const cuda::cupti::Cupti opened = cuda::cupti::open_cupti({"/usr/local/cuda/lib64", "/usr/local/cuda/lib"});
  if (opened.state.file.empty()) GTEST_SKIP() << opened.state.problem;
  EXPECT_EQ(opened.state.problem, "");
  EXPECT_EQ(opened.state.version.rfind("13.", 0), 0u) << opened.state.version;
}

}  // namespace
}  // namespace galley::test
