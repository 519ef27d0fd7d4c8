"""Lists of words from which templates choose. A change of a list changes what templates with it generate."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(" ".join(each.split()) for each in text.split(","))


# Accents, apostrophes, hyphens and spaces are there to make user names interesting.
FIRST_NAMES = """
    Aaliyah, Adaeze, Agnieszka, Ahmed, Aiko, Álvaro, Amélie, Amina, Ana María, Anders, Andrea, Anne-Marie,
    Arjun, Aroha, Åsa, Astrid, Ayşe, Beatriz, Björn, Bogdan, Caitríona, Carlos, Chiara, Chidi, Chloé, Çağla,
    D'Angelo, Daniel, Dariusz, Deepa, Dmitri, Ebba, Eleni, Elif, Emeka, Emma, Esi, Étienne, Fatima, Fernanda,
    Finn, Françoise, Gabriel, Giulia, Grace, Gülay, Hamza, Hana, Hans-Peter, Henrik, Hiroshi, Ida, Ines,
    Ingrid, Isabel, Ivan, Jack, Jakub, Jamal, Jean-Luc, João, Jörg, José, Jun, Karolina, Katarzyna, Kenji,
    Kofi, Lakshmi, Lars, Laszlo, Leïla, Liam, Lin, Łukasz, Magdaléna, Malik, Marek, Mei-Ling, Miguel,
    Mohammed, N'Golo, Nadia, Naomi, Ngozi, Niamh, Nikos, Noor, Olga, Oluwaseun, Omar, Paul, Petra, Priya,
    Rania, Ravi, Renée, Ruth, Sadia, Samuel, Sean, Siobhán, Sofía, Søren, Tamika, Thandiwe, Tomasz, Tuấn,
    Valérie, Vikram, Wei, Xavier, Yara, Yuki, Zoë
"""
LAST_NAMES = """
    Abdi, Achebe, Agarwal, Al-Masri, Andersson, Antonescu, Baker, Bakker, Balogun, Bauer, Ben Ali, Bianchi,
    Björklund, Brown, Byrne, Castro, Chen, Cohen, Costa, Çelik, D'Amico, D'Souza, da Silva, de Boer, de la
    Cruz, Delacroix, Demir, Diallo, Dubois, Dvořák, Eriksen, Fernández, Ferreira, Fischer, Fitzgerald, García,
    García Márquez, Gómez, Greene, Gruber, Guðmundsson, Gupta, Haddad, Hansen, Hernández-Ruiz, Hoàng, Horvat,
    Hughes, Ibrahim, Iyer, Jansen, Johansson, Jones, Kaya, Keller, Khan, Kim, Kiplagat, Kovács, Kowalski,
    Larsson, Lê, Lee, Lefèvre, Lopez, MacLeod, Mäkinen, Martin, Mensah, Meyer-Lindt, Mokoena, Moreau, Müller,
    Nakamura, Ndlovu, Nguyễn, Nielsen, Novák, Núñez, O'Brien, O'Neill, Okafor, Olsen, Özdemir, Papadopoulos,
    Park, Patel, Pereira, Petrović, Popescu, Quispe, Rao, Rossi, Sánchez, Sato, Schäfer, Schmidt,
    Silva-Santos, Singh, Smith, Smith-Jones, Sørensen, St. Clair, Suzuki, Szabó, Tanaka, Taylor, Thompson,
    Tremblay, van den Berg, van Dijk, Virtanen, von Arx, Wallace, Wang, Weiß, Williams, Wójcik, Wright,
    Yamamoto, Yeşil, Zhang
"""
DEPARTMENTS = """
    Accounting, Communications, Customer Service, Engineering, Facilities, Finance, Human Resources, IT,
    Legal, Logistics, Manufacturing, Marketing, Procurement, Quality, Research & Development, Sales, Security,
    Strategy
"""
JOB_TITLES = """
    Accountant, Administrator, Analyst, Apprentice, Architect, Assistant, Auditor, Business Partner, Buyer,
    Chemist, Clerk, Consultant, Controller, Coordinator, Copywriter, Data Scientist, Designer, Developer,
    Director, Driver, Editor, Electrician, Engineer, Event Manager, Foreman, Inspector, Lawyer, Librarian,
    Machinist, Mechanic, Nurse, Office Manager, Operator, Planner, Product Manager, Programmer, Project
    Manager, Receptionist, Recruiter, Researcher, Sales Representative, Scientist, Secretary, Statistician,
    Support Engineer, Team Lead, Technician, Tester, Trainer, Translator, Vice President, Warehouse Worker,
    Writer
"""
CITIES = """
    Abuja, Accra, Amsterdam, Athens, Auckland, Bangkok, Barcelona, Bengaluru, Berlin, Bogotá, Boston,
    Brussels, București, Budapest, Buenos Aires, Cairo, Cape Town, Casablanca, Chicago, Copenhagen, Dakar,
    Dublin, Edinburgh, Geneva, Göteborg, Hà Nội, Hamburg, Helsinki, Ho Chi Minh City, Hong Kong, Istanbul,
    İzmir, Jakarta, Johannesburg, Kraków, Kuala Lumpur, Kyoto, Lagos, Lima, Lisbon, Ljubljana, London, Los
    Angeles, Lyon, Madrid, Malmö, Manila, Medellín, Melbourne, Mexico City, Milan, Montréal, Mumbai, Munich,
    N'Djamena, Nairobi, New York, Osaka, Oslo, Paris, Porto, Prague, Québec, Reykjavík, Rome, Saint-Étienne,
    San José, Santiago, São Paulo, Seoul, Singapore, St. Gallen, Stockholm, Sydney, Taipei, Tallinn, Tel Aviv,
    Timișoara, Tokyo, Toronto, Tromsø, Tunis, Vienna, Vilnius, Warsaw, Wellington, Winston-Salem, Zürich
"""
WORD_LISTS = {
    "first_names": _words(FIRST_NAMES),
    "last_names": _words(LAST_NAMES),
    "departments": _words(DEPARTMENTS),
    "job_titles": _words(JOB_TITLES),
    "cities": _words(CITIES),
}
