// Starts the page that compares two traces.

fillTexts();
wireSections();
