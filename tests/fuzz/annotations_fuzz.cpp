// Parsers of annotations and flows: any bytes give an Error, or numbers that are finite.

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "libcore/base/error.h"
#include "libcore/data/annotations.h"
#include "libcore/data/flow.h"
#include "libcore/data/run_lengths.h"

namespace {

template <class Parse>
void survive(const Parse& parse) {
  try {
    parse();
  } catch (const galley::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  survive([&] {
    for (const auto& object : galley::parse_voc(text, "fuzz.xml").objects) {
      for (const double corner : object.box)
        if (!std::isfinite(corner)) std::abort();
    }
  });
  survive([&] {
    for (const auto& annotation : galley::parse_coco(text, "fuzz.json", {true, true}).annotations) {
      for (const double corner : annotation.box)
        if (!std::isfinite(corner)) std::abort();
    }
  });
  survive([&] {
    const galley::RunLengths mask = galley::RunLengths::of_text(text, 7, 9);
    if (galley::RunLengths::of_text(mask.text(), 7, 9) != mask) std::abort();
  });
  survive([&] {
    const galley::Image flow = galley::parse_flo({reinterpret_cast<const std::byte*>(data), size}, "fuzz.flo");
    for (int64_t i = 0; i < flow.values(); ++i)
      if (!std::isfinite(flow.as<float>()[i])) std::abort();
  });
  return 0;
}
