"""What tests share: builders of real tables, files and attempts. No mocks."""
