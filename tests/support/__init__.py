"""What tests are made of: models, scripted devices, stored inputs. Nothing here ships."""
