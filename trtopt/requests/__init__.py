"""What each public function and command takes: a class each, of declared fields (`trtopt.options`)."""
