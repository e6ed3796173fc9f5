#pragma once
// Body and script of the page that benchmark_page writes.

#include <string_view>

namespace galley {

std::string_view benchmark_page_body();
std::string_view benchmark_page_script();

}  // namespace galley
