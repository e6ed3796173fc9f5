#pragma once
// What benchmark_page puts into its page.

#include <string_view>

namespace galley {

std::string_view benchmark_page_body();
std::string_view benchmark_page_script();

}  // namespace galley
