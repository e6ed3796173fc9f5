// Parser of safetensors headers: any bytes give an Error or a table in which every tensor lies inside the file, without overlap. The
// mutator keeps the length field correct, so that most inputs reach the JSON parser.

#include <cstdlib>
#include <cstring>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/weights/safetensors.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const galley::SafetensorsTable table = galley::parse_safetensors({reinterpret_cast<const std::byte*>(data), size});
    int64_t covered = table.data_begin;
    for (const galley::SafetensorsEntry& entry : table.entries) {
      if (entry.begin != covered || entry.end < entry.begin) std::abort();
      if (entry.dtype && entry.end - entry.begin != entry.shape.elements() * galley::dtype_size(*entry.dtype)) std::abort();
      covered = entry.end;
    }
    if (covered != static_cast<int64_t>(size)) std::abort();
  } catch (const galley::Error&) {
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  uint64_t length = 0;
  if (size >= 8) std::memcpy(&length, data, 8);
  if (seed % 4 == 0 || size < 8 || length > size - 8 || max_size < 16) return LLVMFuzzerMutate(data, size, max_size);
  const std::vector<uint8_t> values(data + 8 + length, data + size);
  if (8 + values.size() >= max_size) return LLVMFuzzerMutate(data, size, max_size);
  length = LLVMFuzzerMutate(data + 8, static_cast<size_t>(length), max_size - 8 - values.size());
  std::memcpy(data, &length, 8);
  if (!values.empty()) std::memcpy(data + 8 + length, values.data(), values.size());
  return 8 + static_cast<size_t>(length) + values.size();
}
