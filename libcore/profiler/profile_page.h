#pragma once
// Body and script of the page that report_html writes.

#include <string_view>

namespace galley {

std::string_view profile_page_body();
std::string_view profile_page_script();

}  // namespace galley
