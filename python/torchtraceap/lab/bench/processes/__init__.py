"""Fresh processes: how programs run in them, report their steps, and which machine they run on."""
