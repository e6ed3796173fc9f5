// Descriptors, reorders and calls of oneDNN, against index formulas of the layouts.

#include "libcore/vendor/onednn/onednn.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <string>
#include <thread>
#include <vector>

namespace galley::onednn {
namespace {

using Floats = std::vector<float>;

Floats counted(int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

/// Contiguous values in another layout.
Floats reordered(const Shape& shape, const Desc& to, const Floats& values) {
  const Call call = make_reorder(desc(DType::kF32, shape, MemoryFormat::contiguous()), to, 1);
  Floats result(to.get_size() / sizeof(float), -1.0f);
  call.run({values.data(), result.data()});
  return result;
}

TEST(Reorder, ChannelsLastPutsChannelsInnermost) {
  const int64_t n = 2, c = 3, h = 4, w = 5;
  const Shape shape{n, c, h, w};
  const Floats values = counted(shape.elements()), got = reordered(shape, desc(DType::kF32, shape, MemoryFormat::channels_last()), values);
  ASSERT_EQ(got.size(), values.size());
  for (int64_t in = 0; in < n; ++in)
    for (int64_t ic = 0; ic < c; ++ic)
      for (int64_t y = 0; y < h; ++y)
        for (int64_t x = 0; x < w; ++x)
          EXPECT_EQ(got[static_cast<size_t>(((in * h + y) * w + x) * c + ic)],
                    values[static_cast<size_t>(((in * c + ic) * h + y) * w + x)]);
}

TEST(Reorder, BlocksAreFilledWithZeros) {
  // Acdb8a: output channels in blocks of 8, then kernel rows and columns, input channels, and the channel in its block.
  const int64_t o = 12, i = 3, k = 2, block = 8;
  const Shape shape{o, i, k, k};
  const Floats values = counted(shape.elements()),
               got = reordered(shape, desc(DType::kF32, shape, MemoryFormat::blocked("Acdb8a")), values);
  ASSERT_EQ(got.size(), static_cast<size_t>(16 * i * k * k));
  for (int64_t out = 0; out < 16; ++out)
    for (int64_t in = 0; in < i; ++in)
      for (int64_t y = 0; y < k; ++y)
        for (int64_t x = 0; x < k; ++x) {
          const float want = out < o ? values[static_cast<size_t>(((out * i + in) * k + y) * k + x)] : 0.0f;
          EXPECT_EQ(got[static_cast<size_t>((((out / block * k + y) * k + x) * i + in) * block + out % block)], want) << out << " " << in;
        }
}

TEST(Formats, AreReadBackFromDescriptors) {
  const Shape shape{16, 8, 3, 5};  // no dimension of size 1: every layout is another one
  for (const char* text : {"contiguous", "channels_last", "blocked(Acdb16a)", "blocked(ABcd8b8a)"}) {
    const MemoryFormat format = MemoryFormat::parse(text);
    ASSERT_TRUE(knows(shape, format)) << text;
    const std::optional<MemoryFormat> read = format_of(desc(DType::kF32, shape, format));
    ASSERT_TRUE(read.has_value()) << text;
    EXPECT_EQ(read->str(), text);
  }
  EXPECT_FALSE(format_of(strided_desc(DType::kF32, {2, 3}, {5, 1})).has_value());  // rows with gaps
  EXPECT_FALSE(knows(shape, MemoryFormat::blocked("Acdb3a")));
}

TEST(Formats, ScalarsAreOneElement) {
  const Desc scalar = desc(DType::kF32, Shape{}, MemoryFormat::contiguous());
  EXPECT_EQ(scalar.get_dims(), dnnl::memory::dims{1});
  EXPECT_EQ(scalar.get_size(), sizeof(float));
}

TEST(Weights, OfGroupsHaveTheGroupInFront) {
  const Shape shape{6, 2, 3, 3};
  const std::optional<Desc> grouped = weight_desc(DType::kF32, shape, MemoryFormat::contiguous(), 3);
  ASSERT_TRUE(grouped.has_value());
  EXPECT_EQ(grouped->get_dims(), (dnnl::memory::dims{3, 2, 2, 3, 3}));
  EXPECT_EQ(grouped->get_strides(), (dnnl::memory::dims{36, 18, 9, 3, 1}));
  EXPECT_FALSE(weight_desc(DType::kF32, shape, MemoryFormat::blocked("Acdb8a"), 3).has_value());  // not depthwise
}

TEST(Weights, FormatsOfDepthwiseOnesAreReadBack) {
  const Shape shape{16, 1, 3, 3};
  const MemoryFormat format = MemoryFormat::blocked("Abcd16a");
  const std::optional<Desc> depthwise = weight_desc(DType::kF32, shape, format, 16);
  ASSERT_TRUE(depthwise.has_value());
  const std::optional<MemoryFormat> read = weight_format_of(*depthwise, shape, 16);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, format);
}

TEST(Dtypes, DeclineWithAReason) {
  EXPECT_EQ(declines(DType::kF32, DType::kF32), "");
  EXPECT_NE(declines(DType::kF32, DType::kBF16).find("bf16"), std::string::npos);
  EXPECT_NE(declines(DType::kI64, DType::kI64).find("i64"), std::string::npos);
  EXPECT_EQ(declines(DType::kBF16, DType::kBF16) == "", computes_in(DType::kBF16));
}

TEST(Errors, NameTheExpression) {
  const Desc small = strided_desc(DType::kF32, {2}, {1}), large = strided_desc(DType::kF32, {3}, {1});
  try {
    make_reorder(small, large, 1);
    FAIL() << "a reorder changed a shape";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("reorder::primitive_desc"), std::string::npos) << error.what();
  }
}

TEST(Call, RunsInManyThreadsOnTheirOwnMemory) {
  const Shape shape{4, 3, 7, 5};
  const Desc from = desc(DType::kF32, shape, MemoryFormat::contiguous()), to = desc(DType::kF32, shape, MemoryFormat::channels_last());
  const Call there = make_reorder(from, to, 1), back = make_reorder(to, from, 1);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      Floats values = counted(shape.elements()), middle(values.size()), result(values.size());
      for (float& value : values) value += 1000.0f * static_cast<float>(t);
      for (int run = 0; run < 50; ++run) {
        std::fill(result.begin(), result.end(), 0.0f);
        there.run({values.data(), middle.data()});
        back.run({middle.data(), result.data()});
        wrong[t] += result != values || middle == values;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(ThreadScope, RestoresTheCount) {
  const int before = omp_get_max_threads();
  {
    const ThreadScope scope(before + 3);
    EXPECT_EQ(omp_get_max_threads(), before + 3);
    const ThreadScope none(0);
    EXPECT_EQ(omp_get_max_threads(), 1);
  }
  EXPECT_EQ(omp_get_max_threads(), before);
}

}  // namespace
}  // namespace galley::onednn
