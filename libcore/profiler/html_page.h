#pragma once
// The page of report_html around its data.

#include <string_view>

namespace galley {

/// Up to where the data stand, a JSON object; and from there on.
std::string_view html_page_head();
std::string_view html_page_tail();

}  // namespace galley
