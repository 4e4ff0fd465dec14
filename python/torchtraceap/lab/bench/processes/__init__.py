"""Fresh processes: programs run in them, what they tell, what the machine is."""
