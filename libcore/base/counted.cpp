#include "libcore/base/counted.h"

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {

std::string counted(int64_t count, std::string_view noun) {
  const std::string_view ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("ss") ? "es" : "s";
  return cat(human_count(count), " ", noun, ending);
}

}  // namespace galley
