// Chat templates: any bytes are a text or an error, never a crash or an endless loop.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace galley::text::jinja;
  try {
    const Template made({reinterpret_cast<const char*>(data), size}, "template");
    const List messages{Dict{{"role", "user"}, {"content", "a b"}}, Dict{{"role", "assistant"}, {"content", Value()}}};
    static_cast<void>(made.render({{"messages", messages}, {"bos_token", "<s>"}, {"tools", Value()}, {"add_generation_prompt", true}}));
  } catch (const galley::Error&) {
  }
  return 0;
}
